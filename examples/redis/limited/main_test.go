package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
)

func TestMain(m *testing.M) {
	logging.Disable() // outages are planned here
	m.Run()
}

// post sends one request and says in short what became of it.
func post(t *testing.T, h http.Handler, path, user, key string) (short string, header http.Header) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
	r.Header.Set("X-User", user)
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	short = strconv.Itoa(w.Code)
	if w.Header().Get("Idempotent-Replayed") == "true" {
		short = "replay of " + short
	}
	return short, w.Header()
}

// outbox counts what was sent to whom.
type outbox struct {
	mu   sync.Mutex
	sent map[string]int
	err  error
}

func (o *outbox) send(_ context.Context, user, what string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sent == nil {
		o.sent = map[string]int{}
	}
	o.sent[what+" to "+user]++
	return o.err
}

func (o *outbox) count(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent[what]
}

// twice names a Cluster of one node: a list of several is what the program takes
// for a Cluster.
func twice(addr string) string { return addr + "," + addr }

func connect(t *testing.T, addr string) redis.UniversalClient {
	t.Helper()
	client := dial(addr)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// instance is one of several processes over the same Redis.
func instance(client redis.UniversalClient, o *outbox) http.Handler {
	return handler(idempotent.New(redisstore.New(client)), redis_rate.NewLimiter(client), o.send)
}

func TestLimited(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		dial func(t *testing.T) redis.UniversalClient
	}{
		{"server", func(t *testing.T) redis.UniversalClient {
			return connect(t, redistest.Start(t).Addr)
		}},
		{"cluster", func(t *testing.T) redis.UniversalClient {
			return connect(t, twice(redistest.StartCluster(t).Addr))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			client := tt.dial(t)
			o := &outbox{}
			h := instance(client, o)
			for _, step := range []struct{ why, path, user, key, want string }{
				{"the first", "/codes", "ada", "1", "202"},
				{"its replay", "/codes", "ada", "1", "replay of 202"},
				{"and once more", "/codes", "ada", "1", "replay of 202"},
				{"the second", "/codes", "ada", "2", "202"},
				{"the third: no replay has counted", "/codes", "ada", "3", "202"},
				{"one too many", "/codes", "ada", "4", "429"},
				{"the same key again is no replay: it was freed", "/codes", "ada", "4", "429"},
				{"what was sent is still replayed", "/codes", "ada", "3", "replay of 202"},
				{"another operation", "/resets", "ada", "5", "202"},
				{"another user", "/codes", "bob", "1", "202"},
			} {
				got, header := post(t, h, step.path, step.user, step.key)
				require.Equal(t, step.want, got, step.why)
				if got == "429" {
					after, err := strconv.Atoi(header.Get("Retry-After"))
					require.NoError(t, err)
					require.True(t, 0 < after && after <= 60, "Retry-After: %d", after)
				}
			}
			require.Equal(t, map[string]int{"code to ada": 3, "password reset to ada": 1, "code to bob": 1}, o.sent)

			// Counted and given an expiry in one step, in one slot, and freed in one command.
			codes, resets := "rate:"+limitKey("ada", "codes"), "rate:"+limitKey("ada", "resets")
			left := client.PTTL(t.Context(), codes).Val()
			require.True(t, 0 < left && left <= 3*time.Minute, "expires in %v", left)
			freed, err := client.Del(t.Context(), codes, resets).Result()
			require.NoError(t, err)
			require.EqualValues(t, 2, freed)

			got, _ := post(t, h, "/codes", "ada", "4")
			require.Equal(t, "202", got, "the refused key runs when there is room")
			got, _ = post(t, h, "/codes", "ada", "4")
			require.Equal(t, "replay of 202", got)
		})
	}
}

// However many instances and keys: three.
func TestLimited_AtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := &outbox{}
	var mu sync.Mutex
	seen := map[string]int{}
	var all sync.WaitGroup
	for i := range 4 {
		h := instance(connect(t, server.Addr), o)
		for j := range 10 {
			all.Go(func() {
				got, _ := post(t, h, "/codes", "ada", strconv.Itoa(10*i+j))
				mu.Lock()
				defer mu.Unlock()
				seen[got]++
			})
		}
	}
	all.Wait()
	require.Equal(t, map[string]int{"202": 3, "429": 37}, seen)
	require.Equal(t, 3, o.count("code to ada"))
}

// No minute sees more than three, wherever it begins. Only here the server is
// not a real one, because nobody can turn that one's clock.
func TestLimited_NoMinuteSeesMore(t *testing.T) {
	t.Parallel()
	addr, advance := redistest.Mini(t)
	o := &outbox{}
	h := instance(connect(t, addr), o)
	const step = 5 * time.Second
	var at []time.Duration // when one was sent
	for now := time.Duration(0); now < 5*time.Minute; now += step {
		for i := range 4 {
			if got, _ := post(t, h, "/codes", "ada", now.String()+"/"+strconv.Itoa(i)); got == "202" {
				at = append(at, now)
			}
		}
		advance(step)
	}
	require.GreaterOrEqual(t, len(at), 3+4, "time gives attempts back")
	for i, first := range at {
		in := 0
		for _, later := range at[i:] {
			if later < first+time.Minute {
				in++
			}
		}
		require.LessOrEqual(t, in, 3, "in the minute from %v: %v", first, at)
	}
}

// Guard and limiter share a Redis: without it the guard refuses, the operation
// never begins.
func TestLimited_RedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := &outbox{}
	h := instance(connect(t, server.Addr), o)
	server.Kill()
	got, header := post(t, h, "/codes", "ada", "1")
	require.Equal(t, "503", got)
	require.NotEmpty(t, header.Get("Retry-After"))
	require.Equal(t, 0, o.count("code to ada"))

	server.Restart(t)
	redistest.Eventually(t, "Redis answers", func() bool {
		got, _ = post(t, h, "/codes", "ada", "1")
		return got != "503"
	})
	require.Equal(t, "202", got)
	require.Equal(t, 1, o.count("code to ada"))
}

// Only the limiter's Redis is away or hangs: nothing is sent, and the key is free.
func TestLimited_LimiterAway(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		t.Run("hangs="+strconv.FormatBool(hangs), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			store := memstore.New()
			t.Cleanup(func() { _ = store.Close() })
			o := &outbox{}
			client := connect(t, server.Addr)
			h := handler(idempotent.New(store), redis_rate.NewLimiter(client), o.send)

			away, back := server.Kill, func() { server.Restart(t) }
			if hangs {
				away, back = func() { server.Pause(t) }, func() { server.Resume(t) }
			}
			away()
			got, header := post(t, h, "/codes", "ada", "1")
			require.Equal(t, "503", got)
			require.Equal(t, "1", header.Get("Retry-After"))
			require.Equal(t, 0, o.count("code to ada"))
			require.Equal(t, 0, store.Len(), "the key is free")

			back()
			redistest.Eventually(t, "Redis answers", func() bool {
				got, _ = post(t, h, "/codes", "ada", "1")
				return got != "503"
			})
			require.Equal(t, "202", got)
		})
	}
}

// An attempt whose reply is lost counts once, because the client sends nothing
// twice. Nothing was sent to the user, and the key is free.
func TestLimited_LostReply(t *testing.T) {
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.Start(t).Addr)
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	o := &outbox{}
	client := connect(t, relay.Addr)
	h := handler(idempotent.New(store), redis_rate.NewLimiter(client), o.send)
	got, _ := post(t, h, "/resets", "ada", "0")
	require.Equal(t, "202", got, "and the script is known to the server")

	relay.SwallowReply(func(request []byte) bool { return bytes.Contains(request, []byte("codes")) })
	for i, want := range []string{"503", "202", "202", "429"} {
		key := strconv.Itoa(max(1, i)) // the first one again, as after a 503
		got, _ := post(t, h, "/codes", "ada", key)
		require.Equal(t, want, got, key)
	}
	require.True(t, relay.Swallowed())
	require.Equal(t, 2, o.count("code to ada"))
}

// A provider that gives no clear answer is not asked again under the same key,
// and its attempt counts.
func TestLimited_UnknownOutcomeCounts(t *testing.T) {
	t.Parallel()
	client := connect(t, redistest.Start(t).Addr)
	o := &outbox{err: errors.New("time-out")}
	h := instance(client, o)
	for _, key := range []string{"1", "2", "3"} {
		got, _ := post(t, h, "/codes", "ada", key)
		require.Equal(t, "502", got)
		got, _ = post(t, h, "/codes", "ada", key)
		require.Equal(t, "replay of 502", got)
	}
	got, _ := post(t, h, "/codes", "ada", "4")
	require.Equal(t, "429", got)
	require.Equal(t, 3, o.count("code to ada"))
}

// No name of a user leaves its slot, or meets another user's counter.
func TestLimitKey(t *testing.T) {
	t.Parallel()
	client := connect(t, twice(redistest.StartCluster(t).Addr))
	slot := func(key string) int64 { return client.ClusterKeySlot(t.Context(), "rate:"+key).Val() }
	seen := map[string]string{}
	for _, user := range []string{"ada", "{bob}", "}", "{}", "a}:codes", "a", "ada:codes", strings.Repeat("x", 2000), "\r\n", "ü"} {
		require.Equal(t, slot(limitKey(user, "codes")), slot(limitKey(user, "resets")), user)
		for _, operation := range []string{"codes", "resets"} {
			key := limitKey(user, operation)
			require.Empty(t, seen[key], key)
			seen[key] = user
		}
	}
	require.NotEqual(t, slot(limitKey("{ada}", "codes")), slot(limitKey("ada", "codes")))
}

func TestNobody(t *testing.T) {
	t.Parallel()
	client := connect(t, redistest.Start(t).Addr)
	got, _ := post(t, instance(client, &outbox{}), "/codes", "", "1")
	require.Equal(t, "401", got)
}

// The program itself, over a socket, from its flags to its end.
func TestRun(t *testing.T) {
	server := redistest.Start(t)
	t.Setenv("IDEMPOTENCY_STORE", "redis://"+server.Addr)
	ctx, stop := context.WithCancel(t.Context())
	out := &lockedBuffer{}
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"-addr", "127.0.0.1:0", "-redis", server.Addr}, out) }()
	var url string
	redistest.Eventually(t, "it listens", func() bool {
		_, after, _ := strings.Cut(out.String(), "listening on ")
		var whole bool
		url, _, whole = strings.Cut(after, "\n")
		return whole
	})
	for range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/codes", nil)
		require.NoError(t, err)
		r.Header.Set("X-User", "ada")
		r.Header.Set("Idempotency-Key", "1")
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
	}
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, 1, strings.Count(out.String(), "to ada: a code"))
	require.Equal(t, "1", server.Must(t, "EXISTS", "idempotent:"+idempotent.StoreKey(http.MethodPost, "/codes", "ada", "1")))

	require.Error(t, run(t.Context(), []string{"-nonsense"}, out))
	require.Error(t, run(t.Context(), []string{"-addr", "127.0.0.1:-1"}, out))
	t.Setenv("IDEMPOTENCY_STORE", "mysql:")
	require.ErrorContains(t, run(t.Context(), nil, out), "IDEMPOTENCY_STORE")
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
