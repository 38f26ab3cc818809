package storeurl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// moving is the scheme of a move.
const moving = "moving"

// move is two stores of which one is left for the other.
type move struct{ old, new *target }

// cutMoving returns what follows moving:, and whether anything does.
func cutMoving(text string) (both string, ok bool) {
	scheme, both, ok := strings.Cut(text, ":")
	return both, ok && strings.EqualFold(scheme, moving)
}

// parseMove reads two URLs with white space between, which no URL holds: so
// neither is encoded a second time.
func parseMove(text string) (*move, error) {
	urls := strings.Fields(text)
	if len(urls) != 2 {
		return nil, errors.New("moving: is followed by two URLs, that of the old store and that of the new one, with a space between; " +
			"a space inside of one is written %20")
	}
	var m move
	for i, one := range []struct {
		name string
		to   **target
	}{{"old", &m.old}, {"new", &m.new}} {
		t, err := parse(urls[i])
		if err != nil {
			return nil, fmt.Errorf("the %s store: %w", one.name, err)
		}
		if t.scheme == memory {
			return nil, fmt.Errorf("the %s store: memory: is of one process, and a move is of several; "+
				"copy its snapshot into the new store instead, by the command idempotent copy", one.name)
		}
		*one.to = t
	}
	if m.old.same(m.new) {
		return nil, errors.New("the old and the new store are the same one, so there is nothing to move; " +
			"give another host, database or prefix to one of them, or only one URL, and no moving: before it")
	}
	return &m, nil
}

// same reports whether both are the entries of one Redis, as far as URLs tell.
func (t *target) same(u *target) bool {
	atOneAddress := slices.ContainsFunc(t.redis.Addrs, func(a string) bool {
		return slices.ContainsFunc(u.redis.Addrs, func(b string) bool { return strings.EqualFold(a, b) })
	})
	return atOneAddress && t.redis.MasterName == u.redis.MasterName && t.redis.DB == u.redis.DB && t.prefix == u.prefix
}

// open opens both stores.
func (m *move) open(ctx context.Context) (idempotent.Store, func() error, error) {
	old, endOld, err := m.old.open(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("the old store: %w", err)
	}
	new, endNew, err := m.new.open(ctx)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("the new store: %w", err), endOld())
	}
	return idempotent.Moving(old, new), func() error { return errors.Join(endNew(), endOld()) }, nil
}
