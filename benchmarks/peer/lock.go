package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Lock is the habit of a lock beside the record: lock, GET, run, SET, unlock.
type Lock struct {
	client *redis.Client
	op     func() string
}

// NewLock returns one over client, which it closes.
func NewLock(op func() string, client *redis.Client) *Lock { return &Lock{client: client, op: op} }

func openLock(op func() string, addr string) (Peer, error) { return NewLock(op, NewClient(addr)), nil }

// unlock deletes the lock of its owner.
//
//	KEYS[1]  name of the lock
//	ARGV[1]  owner
//
// Returns the number of locks deleted.
var unlock = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
`)

// Do needs four round trips for a fresh key and three for a replay.
func (p *Lock) Do(ctx context.Context, key, request string) (answer string, err error) {
	owner := rand.Text()
	lock := "lock:" + key
	err = p.client.SetArgs(ctx, lock, owner, redis.SetArgs{Mode: "NX", TTL: time.Minute}).Err()
	if errors.Is(err, redis.Nil) {
		return "", ErrInFlight
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unlock.Run(ctx, p.client, []string{lock}, owner).Err()) }()
	record, err := p.client.Get(ctx, "record:"+key).Result()
	if err == nil {
		asked, answer, _ := strings.Cut(record, "\n")
		if asked != request {
			return "", ErrMismatch
		}
		return answer, nil
	}
	if !errors.Is(err, redis.Nil) {
		return "", err
	}
	answer = p.op()
	return answer, p.client.Set(ctx, "record:"+key, request+"\n"+answer, Retention).Err()
}

// Close closes the client.
func (p *Lock) Close() error { return p.client.Close() }
