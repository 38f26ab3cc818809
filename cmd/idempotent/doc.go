// Command idempotent looks at the keys of a store, and settles them, for people
// on call:
//
//	export IDEMPOTENCY_STORE=redis://cache.example:6379
//	idempotent list -state unknown
//	idempotent get -result KEY
//	idempotent resolve -as success -owner OWNER -reason 'paid, see the bank' KEY
//	idempotent free -reason 'never sent' KEY
//	idempotent check
//	idempotent watch
//	idempotent bench -duration 5s
//	idempotent copy /var/lib/shop/keys.snapshot
//
// The store is that of -store or IDEMPOTENCY_STORE: what package storeurl opens,
// and postgres://, mysql:// and sqlite: for package sqlstore. Of a move (moving:)
// get, resolve, free and check mean both stores, and list and watch want one of
// them. Passwords are never printed. Tables are for people; -json writes one object a line for
// scripts, with key_base64 beside a key that is not UTF-8. Results go to stdout, and
// questions, progress, warnings and the log of what was changed to stderr. What
// resolve and free do is asked for on a terminal unless -yes is given; without a
// terminal it must be.
//
// A key may be given as the store names it, or as the parts of a request, with
// -method, -path, -principal and -key. What follows -- is no flag, for keys that
// begin with a hyphen.
//
// # Exit codes
//
//	0  done
//	1  error: the store cannot be reached, has failed, or a record cannot be read
//	2  usage: a flag, an argument or a store URL is wrong; nothing was sent
//	3  not found: the store has no entry under this key
//	4  in flight: an operation is running under this key
//	5  conflict: the key is another owner's by now, or has a known outcome
//	6  findings: check has found something, or bench has seen calls fail
//	7  declined: the question was not answered with yes; nothing was changed
package main
