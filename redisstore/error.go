package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
)

// What Redis answers where a step cannot be taken. The other codes (READONLY,
// LOADING, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, NOREPLICAS and so on) say that
// the server cannot serve right now: they need no word of ours and pass as they
// are.
const (
	codeFull  = "OOM"
	codeType  = "WRONGTYPE"
	codeRight = "NOPERM"
)

// commands is what the Redis user must be allowed to run.
const commands = "+evalsha +eval +hmget +hget +hset +hdel +exists +del +pexpireat +time +publish +subscribe +ping +wait"

// commandsOfList are those that [Store.List] needs besides.
const commandsOfList = " +scan +hexists"

// explain turns an error of the client into one that the guard can branch on
// and an operator can act on. Its text shows neither key nor what the step
// sent: it ends in logs.
func (s *Store) explain(op, key string, err error) error {
	if err == nil {
		return nil
	}
	err = s.discreet(key, err)
	switch {
	case op == "claim" && hasCode(err, codeFull):
		// Of the other steps none begins with a write that a full server
		// refuses; if one is refused all the same it has failed, and is to be
		// repeated.
		return wrap(op, fmt.Errorf("%w: Redis is at its maxmemory and evicts nothing: %w", idempotent.ErrFull, err))
	case hasCode(err, codeType):
		return wrap(op, fmt.Errorf("%w: the name holds no hash: %w", idempotent.ErrCorrupt, err))
	case refused(err):
		commands := commands
		if op == "list" {
			commands += commandsOfList
		}
		return wrap(op, fmt.Errorf("the Redis user lacks a permission (ACL SETUSER … ~%s* &%s* %s): %w",
			s.prefix, s.prefix, commands, err))
	}
	return wrap(op, err)
}

// acksError says that too few replicas have a claim.
type acksError struct {
	got, want int
	within    time.Duration
}

func (e *acksError) Error() string {
	return fmt.Sprintf("%d of %d replicas acknowledged the claim within %v", e.got, e.want, e.within)
}

// discreetError is an error without the part of its text that shows what was
// sent.
type discreetError struct {
	error
	text string
}

func (e discreetError) Error() string { return e.text }
func (e discreetError) Unwrap() error { return e.error }

// discreet cuts err's text where it quotes. A server, or a proxy before it,
// that does not know a command repeats its arguments; the client quotes a reply
// that it cannot read, which may be the middle of a record. Everything else is
// fixed, as far as is known, so that the name is looked for besides.
func (s *Store) discreet(key string, err error) error {
	text := err.Error()
	short := text
	if fromServer(err) {
		short = cut(short, ", with args beginning with")
	} else if strings.HasPrefix(short, "redis: ") {
		short = cut(short, `"`)
	}
	if key != "" {
		short = strings.ReplaceAll(short, s.name(key), idempotent.LogKey(key))
	}
	if short == text {
		return err
	}
	return discreetError{err, short}
}

// cut returns s up to mark.
func cut(s, mark string) string {
	if before, _, ok := strings.Cut(s, mark); ok {
		return before + "…"
	}
	return s
}

// wrap says which step failed.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("redisstore: %s: %w", op, err)
}

// fromServer reports whether err is an answer, not a failure to get one.
func fromServer(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// refused reports whether the Redis user may not do what the step needs.
// Inside a script Redis up to 7.0 has no code for that, only these words.
func refused(err error) bool {
	return hasCode(err, codeRight) || fromServer(err) && strings.Contains(err.Error(), "The user executing the script")
}

// hasCode reports whether a server answered with code. Redis 7 and Valkey hand
// on the error of a command inside a script as it is; Redis 6.2 and miniredis
// put it behind "ERR Error running script … : ", some of them with its hyphen.
func hasCode(err error, code string) bool {
	var server redis.Error
	if !errors.As(err, &server) {
		return false
	}
	text := strings.TrimPrefix(server.Error(), "ERR ")
	if strings.HasPrefix(text, code+" ") {
		return true
	}
	return strings.HasPrefix(text, "Error ") &&
		(strings.Contains(text, ": "+code+" ") || strings.Contains(text, ": -"+code+" "))
}
