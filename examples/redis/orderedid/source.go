package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// patience is how long an id may wait for Redis before it is made here.
const patience = 200 * time.Millisecond

// number hands out the next number in one step. It is INCR, lifted to the
// server's clock: a counter that has been lost, or has lost its newest steps in a
// failover, goes on above what it had handed out and not at 1 again.
//
//	KEYS[1]  the counter
//	ARGV[1]  the largest number that the caller has seen
//	returns  a number above every earlier one, in microseconds since 1970 unless
//	         more than a million a second are asked for; Lua counts exactly until 2255
var number = redis.NewScript(`
local n = redis.call('INCR', KEYS[1])
local now = redis.call('TIME')
local least = math.max(now[1] * 1000000 + now[2], ARGV[1] + 1)
if n < least then
  n = least
  redis.call('SET', KEYS[1], string.format('%.0f', n)) -- never as 1e+15
end
return n`)

// source makes ids that rise. All of them are UUIDv7: 60 bits of a number, as
// the standard has them, milliseconds and a fraction, and 62 random bits.
//
// The guarantee, while Redis answers: if one call of next has returned before
// another one begins, in whatever instance, the second id is larger. Ids may be
// left out.
//
// The loss, while Redis is away or does not answer in time: numbers come from the
// clock of the instance. Its own ids go on rising, from before the outage to
// after it, and also where the clock steps back, because none is made at or below
// one that this source has seen. Against all others, also those that Redis still
// counts for, they are in the order of the clocks, and a process that starts in
// the outage knows only its clock. Where Redis has lost the counter and its own
// clock is behind, too, whoever asks lifts the counter to what it has seen, and
// only that far.
//
// Never lost: no two ids are equal, in any instance, whatever clock or counter
// does, but for the chance that two of one microsecond share 62 random bits.
//
// An instance whose clock is ahead in an outage takes the counter with it. Ids
// then go on rising one by one until the time has come; so a number is an order,
// not a date.
//
// It is safe for concurrent use.
type source struct {
	client   redis.UniversalClient
	key      string
	patience time.Duration
	away     func(error) // told why an id was made here

	mu   sync.Mutex
	last int64 // the largest number seen; guarded by mu
}

func newSource(client redis.UniversalClient, key string, away func(error)) *source {
	return &source{client: client, key: key, patience: patience, away: away}
}

// next returns the next id. It blocks for patience at most, and fails only when
// ctx is done or the system has no randomness.
func (s *source) next(ctx context.Context) (uuid.UUID, error) {
	n, err := s.shared(ctx)
	switch {
	case ctx.Err() != nil:
		return uuid.Nil, ctx.Err()
	case err != nil:
		s.away(err)
		n = s.local()
	}
	return stamp(n)
}

// shared asks Redis, once: a second attempt would cost what the fallback gives.
func (s *source) shared(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	s.mu.Lock()
	seen := s.last
	s.mu.Unlock()
	n, err := number.Run(ctx, s.client, []string{s.key}, seen).Int64()
	if err != nil {
		return 0, fmt.Errorf("next number: %w", err)
	}
	s.mu.Lock()
	s.last = max(s.last, n)
	s.mu.Unlock()
	return n, nil
}

// local is the clock, or one more than the largest number seen where the clock
// is not beyond it.
func (s *source) local() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last+1, time.Now().UnixMicro())
	return s.last
}

// stamp puts n where a UUIDv7 has its time. The rest of it, version, variant and
// random bits, is the library's.
func stamp(n int64) (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, err
	}
	milli, micro := n/1000, n%1000
	for i := range 6 {
		id[i] = byte(milli >> (40 - 8*i))
	}
	id[6] = 0x70 | byte(micro>>8)
	id[7] = byte(micro)
	return id, nil
}
