package redisstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
)

// What one page may ask of a server: so many SCANs of at least so many names.
// Names of others that share the server count, so that a page may be empty.
const (
	mostScans  = 32
	fewestScan = 10
)

// listedDigest is how many letters of a name's SHA-256 a cursor has.
const listedDigest = 12

// List returns the next page of the entries under the store's prefix; see
// [idempotent.Lister]. It takes up to 32 short SCANs, which go through the names
// of the whole server and hold nobody up, and one pipeline that reads what was
// found, without the results. The nodes of a Cluster or Ring come one after the
// other. What the prefix covers and is no record of this store is Corrupt.
//
// A SCAN is of one server: one that is restarted, replaced by a replica or
// moves its slots to others in the course of a listing may leave entries out,
// and a cursor of a node that is gone is [idempotent.ErrInvalid]. Begin anew
// then. The Redis user needs +scan and +hexists besides what other methods need.
//
// Only a *redis.Client, *redis.ClusterClient and *redis.Ring tell their nodes; on
// other clients the error matches [errors.ErrUnsupported].
func (s *Store) List(ctx context.Context, q idempotent.ListQuery) (idempotent.Page, error) {
	size, err := q.Size()
	if err != nil {
		return idempotent.Page{}, err
	}
	at, err := parsePosition(q.Cursor)
	if err != nil {
		return idempotent.Page{}, err
	}
	if err := s.open(ctx); err != nil {
		return idempotent.Page{}, err
	}
	return call(ctx, s.endsItself(ctx), func() (idempotent.Page, error) {
		nodes, err := s.nodes(ctx)
		if err != nil {
			return idempotent.Page{}, s.explain("list", "", err)
		}
		names, next, err := scan(ctx, nodes, glob(s.name(q.Prefix))+"*", at, size)
		if err != nil {
			return idempotent.Page{}, s.explain("list", "", err)
		}
		page, err := s.glance(ctx, names)
		if err != nil {
			return idempotent.Page{}, err
		}
		page.Next = next
		return page, nil
	})
}

// node is a server that has names of its own.
type node struct {
	addr   string // "" where there is but one
	client *redis.Client
}

// nodes returns the servers that a listing goes through, in its order.
func (s *Store) nodes(ctx context.Context) ([]node, error) {
	var mu sync.Mutex
	var all []node
	add := func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, node{c.Options().Addr, c})
		return nil
	}
	var err error
	switch c := s.client.(type) {
	case *redis.Client:
		return []node{{"", c}}, nil
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, add)
	case *redis.Ring:
		err = c.ForEachShard(ctx, add)
	default:
		return nil, fmt.Errorf("a %T does not tell its nodes: %w", c, errors.ErrUnsupported)
	}
	if err == nil && len(all) == 0 {
		err = errors.New("there is no node")
	}
	slices.SortFunc(all, func(a, b node) int { return cmp.Compare(a.addr, b.addr) })
	return all, err
}

// position is where a page begins.
type position struct {
	node   string   // its address
	scan   uint64   // cursor of the node
	listed []string // of the names that this cursor returns: digests of those that earlier pages had
}

// String returns the cursor that says p.
func (p position) String() string {
	return strings.Join(append([]string{strconv.FormatUint(p.scan, 10) + "@" + p.node}, p.listed...), ",")
}

// parsePosition reads a cursor. The empty one is the beginning.
func parsePosition(cursor string) (p position, err error) {
	if cursor == "" {
		return position{}, nil
	}
	parts := strings.Split(cursor, ",")
	number, addr, ok := strings.Cut(parts[0], "@")
	p = position{node: addr, listed: parts[1:]}
	p.scan, err = strconv.ParseUint(number, 10, 64)
	for _, digest := range p.listed {
		_, bad := base64.RawURLEncoding.DecodeString(digest)
		ok = ok && bad == nil && len(digest) == listedDigest
	}
	if err != nil || !ok || p.String() != cursor {
		return position{}, fmt.Errorf("%w: ListQuery.Cursor is none of a Redis store; use Page.Next, or \"\" to begin", idempotent.ErrInvalid)
	}
	return p, nil
}

// scan returns at most size names that fit pattern, and the cursor that goes on
// after them, or "" at the end.
//
// A SCAN may return more names than it was asked for, and a cursor of it cannot
// stop in between. What does not fit is left to the next page, which asks again
// from where this SCAN began; and where it does not fit a whole page either, the
// cursor says which of its names have been listed.
func scan(ctx context.Context, nodes []node, pattern string, at position, size int) (names []string, next string, err error) {
	i := 0
	if at.node != "" || at.scan != 0 {
		i = slices.IndexFunc(nodes, func(n node) bool { return n.addr == at.node })
	}
	if i < 0 {
		return nil, "", fmt.Errorf("%w: ListQuery.Cursor is of a node that is gone; begin the listing anew", idempotent.ErrInvalid)
	}
	at.node = nodes[i].addr
	count := max(fewestScan, size/2)
	for range mostScans {
		batch, follows, err := nodes[i].client.Scan(ctx, at.scan, pattern, int64(count)).Result()
		if err != nil {
			return nil, "", err
		}
		batch = slices.DeleteFunc(batch, func(name string) bool { return slices.Contains(at.listed, digestOf(name)) })
		if room := size - len(names); len(batch) > room {
			if len(names) == 0 {
				names = batch[:room]
				for _, name := range names {
					at.listed = append(at.listed, digestOf(name))
				}
			}
			break
		}
		names = append(names, batch...)
		at.scan, at.listed = follows, nil
		if follows == 0 {
			if i++; i == len(nodes) {
				return names, "", nil
			}
			at.node = nodes[i].addr
		}
		if len(names) > size/2 {
			break
		}
	}
	return names, at.String(), nil
}

func digestOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return base64.RawURLEncoding.EncodeToString(sum[:listedDigest*6/8])
}

// globber takes their meaning from the characters that have one in a pattern.
var globber = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// glob returns the pattern that fits text alone.
func glob(text string) string { return globber.Replace(text) }

// glance reads the entries under names without their results.
func (s *Store) glance(ctx context.Context, names []string) (page idempotent.Page, err error) {
	keys := make([]string, 0, len(names))
	for _, name := range names {
		if key, ok := s.keyOf(name); ok {
			keys = append(keys, key)
		} else {
			page.Corrupt = append(page.Corrupt, strings.TrimPrefix(name, s.prefix))
		}
	}
	for i, cmd := range s.evalEach(ctx, listScript, keys) {
		err := s.explain("list", keys[i], cmd.Err())
		var l look
		if err == nil {
			l, err = decodeLook(keys[i], cmd.Val())
		}
		switch {
		case errors.Is(err, idempotent.ErrCorrupt), errors.Is(err, idempotent.ErrNewerFormat):
			page.Corrupt = append(page.Corrupt, keys[i])
		case err != nil:
			return idempotent.Page{}, err
		case l.found:
			page.Entries = append(page.Entries, l.entry)
		}
	}
	return page, nil
}

// evalEach is eval of a script that takes an identity of nobody, for each of
// keys, in one round trip to each server.
func (s *Store) evalEach(ctx context.Context, sc *script, keys []string) []*redis.StringCmd {
	cmds := make([]*redis.StringCmd, len(keys))
	send := func(command string, script any, wanted func(i int) bool) {
		pipe := s.client.Pipeline()
		for i, key := range keys {
			if wanted(i) {
				cmds[i] = redis.NewStringCmd(ctx, command, script, 1, s.name(key), identity(key, ""))
				_ = pipe.Process(ctx, cmds[i])
			}
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
	}
	send("evalsha", sc.hash, func(int) bool { return true })
	send("eval", sc.source, func(i int) bool {
		return cmds[i].Err() != nil && redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT")
	})
	return cmds
}
