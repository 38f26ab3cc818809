package main

import (
	"flag"

	"github.com/idempotent-go/idempotent"
)

const keyArgs = "KEY | -principal P -key K [-method M -path P]"

const keyHelp = `KEY is the name under which the store keeps the entry, as list shows it. The
name of a request is built from its parts with -key and -principal, and with
-method and -path unless the program uses WithPrincipalScope.
`

// keyFlags name one key.
type keyFlags struct {
	method, path, principal, key string
}

func (k *keyFlags) declare(flags *flag.FlagSet) {
	flags.StringVar(&k.method, "method", "", "`method` of the request, such as POST")
	flags.StringVar(&k.path, "path", "", "`path` of the request as the client sent it, without the query")
	flags.StringVar(&k.principal, "principal", "", "`principal` of the request, as the program's function returns it")
	flags.StringVar(&k.key, "key", "", "Idempotency-`Key` of the request, without quotes")
}

// name returns the store name that the flags and arguments mean.
func (k *keyFlags) name(args []string) (string, error) {
	parts := *k != keyFlags{}
	switch {
	case len(args) > 1:
		return "", usage("%d arguments, and one key is meant; quote a key that holds spaces", len(args))
	case len(args) == 1 && parts:
		return "", usage("a KEY and the parts of one are given; use either")
	case len(args) == 1 && args[0] == "", len(args) == 0 && !parts:
		return "", usage("the key is missing: give KEY, or -principal and -key of the request")
	case len(args) == 1:
		return args[0], nil
	case k.key == "" || k.principal == "":
		return "", usage("-key and -principal go together")
	case (k.method == "") != (k.path == ""):
		return "", usage("-method and -path go together, and both are left out where the program uses WithPrincipalScope")
	}
	return idempotent.StoreKey(k.method, k.path, k.principal, k.key), nil
}
