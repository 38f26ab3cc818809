package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // outages are planned here
	m.Run()
}

const counter = "orderedid:test"

// instance is the source of one of several processes, patient enough for a slow
// machine. It counts in made how many ids it made without Redis.
func instance(t *testing.T, addr string) (s *source, made *int) {
	t.Helper()
	client := dial(addr)
	t.Cleanup(func() { _ = client.Close() })
	made = new(int)
	s = newSource(client, counter, func(error) { *made++ })
	s.patience = 10 * time.Second
	return s, made
}

// rising asks the sources in turn and requires every id to be above all before.
type rising struct{ last uuid.UUID }

func (r *rising) ask(t *testing.T, sources ...*source) {
	t.Helper()
	for range 5 {
		for _, s := range sources {
			id, err := s.next(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 7, id.Version())
			require.Equal(t, uuid.RFC4122, id.Variant())
			require.Positive(t, bytes.Compare(id[:], r.last[:]), "%v after %v", id, r.last)
			r.last = id
		}
	}
}

// While Redis answers, all instances draw from one order.
func TestSource_OneOrder(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"server": func(t *testing.T) string { return redistest.Start(t).Addr },
		"cluster": func(t *testing.T) string { // several addresses are a Cluster to the program
			addr := redistest.StartCluster(t).Addr
			return addr + "," + addr
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := start(t)
			a, aMade := instance(t, addr)
			b, bMade := instance(t, addr)
			c, cMade := instance(t, addr)
			new(rising).ask(t, a, b, b, c, a)
			require.Zero(t, *aMade+*bMade+*cMade)
		})
	}
}

func TestSource_AtOnce(t *testing.T) {
	t.Parallel()
	addr := redistest.Start(t).Addr
	var mu sync.Mutex
	numbers := map[uint64]bool{}
	var all sync.WaitGroup
	for range 4 {
		s, _ := instance(t, addr)
		for range 4 {
			all.Go(func() {
				var last uint64
				for range 50 {
					id, err := s.next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					n := numberOf(id)
					mu.Lock()
					if n <= last || numbers[n] {
						t.Errorf("%d after %d, seen before: %v", n, last, numbers[n])
					}
					numbers[n], last = true, n
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	require.Len(t, numbers, 4*4*50)
}

// numberOf reads the 60 bits of an id that order it.
func numberOf(id uuid.UUID) (n uint64) {
	for _, b := range id[:6] {
		n = n<<8 | uint64(b)
	}
	return n*1000 + uint64(id[6]&0x0f)<<8 + uint64(id[7])
}

func TestStamp(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{0, 1, 999, 1000, 1_700_000_000_123_456, 1<<53 - 1} {
		id, err := stamp(n)
		require.NoError(t, err)
		require.EqualValues(t, n, numberOf(id))
		again, err := stamp(n)
		require.NoError(t, err)
		require.Equal(t, id[:8], again[:8])
		require.NotEqual(t, id[8:], again[8:], "62 random bits tell them apart")
	}
	id, err := stamp(time.Date(2026, 12, 1, 2, 3, 4, 5_678_000, time.UTC).UnixMicro())
	require.NoError(t, err)
	sec, nsec := id.Time().UnixTime()
	require.Equal(t, "2026-12-01T02:03:04.005Z", time.Unix(sec, nsec).UTC().Format(time.RFC3339Nano), "others read the time, too")
}

// One instance's ids rise into an outage and out of it, whatever Redis has kept.
func TestSource_RedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, made := instance(t, server.Addr)
	r := &rising{}
	r.ask(t, s)
	require.Zero(t, *made)

	server.Kill()
	r.ask(t, s)
	require.Equal(t, 5, *made)

	server.Restart(t) // empty
	redistest.Eventually(t, "Redis answers", func() bool {
		before := *made
		_, err := s.next(t.Context())
		return err == nil && *made == before
	})
	before := *made
	r.ask(t, s)
	require.Equal(t, before, *made)
}

// A Redis that does not answer is away, too. The client waits without end here:
// it is patience that ends the call.
func TestSource_RedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, made := instance(t, server.Addr)
	r := &rising{}
	r.ask(t, s)
	s.client.(*redis.Client).Options().ReadTimeout = 0
	server.Pause(t)
	s.patience = 20 * time.Millisecond
	r.ask(t, s)
	require.Equal(t, 5, *made)
	server.Resume(t)
	s.patience = 10 * time.Second
	r.ask(t, s)
	require.Equal(t, 5, *made, "what was sent to the hanging server is no answer to a later call")
}

// A number whose reply is lost is left out.
func TestSource_LostReply(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	relay := redistest.NewRelay(t, server.Addr)
	s, made := instance(t, relay.Addr)
	other, _ := instance(t, server.Addr)
	r := &rising{}
	r.ask(t, s, other)
	relay.SwallowReply(func(request []byte) bool { return bytes.Contains(request, []byte(counter)) })
	_, err := s.next(t.Context())
	require.NoError(t, err)
	require.True(t, relay.Swallowed())
	require.Equal(t, 1, *made)
	r.ask(t, s, other)
	require.Equal(t, 1, *made)
}

// Another process, which has seen nothing, goes on above a counter that was
// lost, and above one that a failover set back.
func TestSource_CounterLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	first, _ := instance(t, server.Addr)
	r := &rising{}
	r.ask(t, first)
	set := server.Must(t, "GET", counter)
	r.ask(t, first)
	for _, lose := range [][]string{{"DEL", counter}, {"SET", counter, set}, {"SET", counter, "1"}} {
		server.Must(t, lose...)
		fresh, made := instance(t, server.Addr)
		r.ask(t, fresh, first)
		require.Zero(t, *made)
	}
}

// A counter beyond the clock is followed: by Redis itself, by an instance that
// loses Redis, and by all once that one is back.
func TestSource_CounterAhead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ahead := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	server.Must(t, "SET", counter, strconv.FormatInt(ahead, 10))
	relay := redistest.NewRelay(t, server.Addr)
	s, made := instance(t, relay.Addr)
	other, _ := instance(t, server.Addr)
	r := &rising{}
	r.ask(t, s, other, s)
	require.EqualValues(t, ahead+15, numberOf(r.last), "one by one, and exactly")

	relay.Cut()
	r.ask(t, s)
	require.Equal(t, 5, *made)
	relay.Mend()
	r.ask(t, s, other)
	require.Equal(t, 5, *made)
}

// What Redis refuses is made here and told: the counter is no number, or the
// server is full.
func TestSource_RedisRefuses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Must(t, "SET", counter, "tea")
	s, _ := instance(t, server.Addr)
	var told []error
	s.away = func(err error) { told = append(told, err) }
	new(rising).ask(t, s)
	require.Len(t, told, 5)
	require.ErrorContains(t, told[0], "not an integer")
}

// A caller that is gone gets no id.
func TestSource_CallerGone(t *testing.T) {
	t.Parallel()
	s, made := instance(t, redistest.Start(t).Addr)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, *made)
}

// absent is a Redis that is away, without a socket: a socket would take a test
// out of its bubble.
type absent struct{}

var errAbsent = errors.New("away")

func (absent) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errAbsent }
}

func (absent) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, c redis.Cmder) error { c.SetErr(errAbsent); return errAbsent }
}

func (absent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func alone(t *testing.T) *source {
	t.Helper()
	s, _ := instance(t, "127.0.0.1:1")
	s.client.AddHook(absent{})
	return s
}

// A bubble's clock begins in the year 2000: an id made before it is followed by
// a step back of a quarter of a century.
func TestSource_ClockStepsBack(t *testing.T) {
	s, r := alone(t), &rising{}
	r.ask(t, s)
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, 2000, time.Now().Year())
		r.ask(t, s)
		time.Sleep(time.Hour)
		r.ask(t, s)
	})
	r.ask(t, s) // and forward again
}

// The same with Redis: what it has counted is not undone by the instance's clock.
func TestSource_ClockStepsBackAfterRedis(t *testing.T) {
	s, _ := instance(t, redistest.Start(t).Addr)
	r := &rising{}
	r.ask(t, s)
	s.client.AddHook(absent{})
	synctest.Test(t, func(t *testing.T) { r.ask(t, s) })
}

// An instance whose clock was ahead in an outage takes the counter with it.
func TestSource_ClockWasAhead(t *testing.T) {
	addr := redistest.Start(t).Addr
	s, _ := instance(t, addr)
	s.last = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	other, _ := instance(t, addr)
	r := &rising{}
	r.ask(t, s, other)
	require.Greater(t, numberOf(r.last), uint64(s.last))
}

// The loss, as source states it: a process that starts while Redis is away, after
// its clock has stepped back, makes ids below those of its predecessor. They are
// still no ids that anybody else has.
func TestSource_LossAfterRestart(t *testing.T) {
	before, err := alone(t).next(t.Context())
	require.NoError(t, err)
	successor, twin := alone(t), alone(t)
	synctest.Test(t, func(t *testing.T) {
		after, err := successor.next(t.Context())
		require.NoError(t, err)
		require.Negative(t, bytes.Compare(after[:], before[:]))

		same, err := twin.next(t.Context())
		require.NoError(t, err)
		require.Equal(t, numberOf(after), numberOf(same), "both have the same clock only")
		require.NotEqual(t, after, same)
	})
}
