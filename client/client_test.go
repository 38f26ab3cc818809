package client_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/client"
	"github.com/idempotent-go/idempotent/memstore"
)

func do(ctx context.Context, c *http.Client, url string) (order, error) {
	return client.Do[order](ctx, c, http.MethodPost, url, map[string]int{"amount": 1})
}

func TestB73_OneKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.relay.SwallowReply(isPost)
	got, err := do(t.Context(), w.client(), w.url)
	require.NoError(t, err)
	require.Equal(t, order{1}, got)
	posts := w.arrived("POST")
	require.GreaterOrEqual(t, len(posts), 2)
	for _, p := range posts {
		require.Equal(t, posts[0], p, "key and body are the same on every attempt")
	}
	id, err := uuid.Parse(posts[0].key)
	require.NoError(t, err)
	require.EqualValues(t, 7, id.Version())
	require.EqualValues(t, 1, w.runs.Load())

	got, err = do(t.Context(), w.client(), w.url)
	require.NoError(t, err)
	require.Equal(t, order{2}, got, "another operation")
	require.NotEqual(t, posts[0].key, w.arrived("POST")[len(posts)].key)
}

// refreshing is a layer that adds a token, and gets a new one after each
// attempt, and after a refusal.
type refreshing struct {
	base   http.RoundTripper
	tokens []string
	n      atomic.Int64
}

func (f *refreshing) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		r := r.Clone(r.Context())
		if r.GetBody != nil {
			r.Body, _ = r.GetBody()
		}
		r.Header.Set("Authorization", f.tokens[min(int(f.n.Add(1)), len(f.tokens))-1])
		res, err := f.base.RoundTrip(r)
		if err == nil && res.StatusCode == http.StatusUnauthorized {
			_ = res.Body.Close()
			continue
		}
		return res, err
	}
}

func TestB73_TokenRefreshed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.relay.SwallowReply(func(b []byte) bool { return isPost(b) && strings.Contains(string(b), "token-1") })
	c := &http.Client{Transport: client.New(&refreshing{base: base(t), tokens: []string{"expired", "token-1", "token-2"}})}
	got, err := do(t.Context(), c, w.url)
	require.NoError(t, err)
	require.Equal(t, order{1}, got)
	posts := w.arrived("POST")
	require.GreaterOrEqual(t, len(posts), 3)
	require.Equal(t, "expired", posts[0].token)
	require.Equal(t, "token-2", posts[len(posts)-1].token)
	for _, p := range posts {
		require.Equal(t, posts[0].key, p.key)
	}
	require.EqualValues(t, 1, w.runs.Load())
}

func TestB73_Restart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	key := client.NewKey() // stored by the caller
	ctx := client.WithKey(t.Context(), key)
	w.relay.SwallowReply(isPost)
	_, err := do(ctx, w.client(client.WithRetries(0)), w.url)
	var unknown *client.UnknownError
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, key, unknown.Key)

	w.until("recorded", func() bool { return w.runs.Load() == 1 })
	got, err := do(client.WithKey(t.Context(), unknown.Key), w.client(), w.url) // another process
	require.NoError(t, err)
	require.Equal(t, order{1}, got)
	require.EqualValues(t, 1, w.runs.Load())
}

func TestB73_WhereTheKeyComesFrom(t *testing.T) {
	t.Parallel()
	f := &fake{answers: func(_ int, r *http.Request) (*http.Response, error) { return reply(r, 200, ""), nil }}
	c := &http.Client{Transport: client.New(f)}
	send := func(ctx context.Context, method, path string, fields ...string) (key string, err error) {
		r, err := http.NewRequestWithContext(ctx, method, "http://shop"+path, strings.NewReader("{}"))
		require.NoError(t, err)
		for i := 0; i < len(fields); i += 2 {
			r.Header.Add(fields[i], fields[i+1])
		}
		before := r.Header.Clone()
		before2 := len(f.sent)
		res, err := c.Do(r)
		require.Equal(t, before, r.Header, "the request is the caller's")
		if err != nil {
			require.Len(t, f.sent, before2, "nothing was sent")
			return "", err
		}
		require.NoError(t, res.Body.Close())
		return f.sent[len(f.sent)-1].key, nil
	}
	given := client.WithKey(t.Context(), "given")
	for _, c := range []struct {
		ctx    context.Context
		method string
		fields []string
		want   string
	}{
		{given, "POST", nil, "given"},
		{given, "PUT", nil, "given"},
		{given, "DELETE", nil, "given"},
		{given, "GET", nil, ""},
		{given, "HEAD", nil, ""},
		{given, "POST", []string{"Idempotency-Key", "own"}, "own"},
		{given, "POST", []string{"X-Idempotency-Key", "own"}, ""}, // the field stays where it is
		{t.Context(), "PUT", nil, ""},
		{client.WithKey(t.Context(), `a "b"; \c`), "POST", nil, `"a \"b\"; \\c"`},
	} {
		got, err := send(c.ctx, c.method, "/", c.fields...)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%s %v", c.method, c.fields)
	}
	for _, bad := range []string{"", "a\nb", "é", strings.Repeat("k", 256)} {
		_, err := send(client.WithKey(t.Context(), bad), "POST", "/")
		require.ErrorIs(t, err, idempotent.ErrInvalid)
	}
	_, err := send(t.Context(), "POST", "/", "Idempotency-Key", "a", "Idempotency-Key", "b")
	require.ErrorIs(t, err, idempotent.ErrInvalid)
	_, err = send(t.Context(), "POST", "/", "Idempotency-Key", "")
	require.ErrorIs(t, err, idempotent.ErrInvalid)

	// Inside an operation: the same on each of its attempts.
	store := memstore.New()
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	guard := idempotent.New(store)
	inside := func(key string) (keys [3]string) {
		require.NoError(t, guard.Do(t.Context(), key, func(ctx context.Context) error {
			defer idempotent.Release(ctx)
			var errs [3]error
			keys[0], errs[0] = send(ctx, "POST", "/charges")
			keys[1], errs[1] = send(ctx, "POST", "/mails")
			keys[2], errs[2] = send(client.WithKey(ctx, idempotent.Derive(ctx, "charge")), "POST", "/charges")
			return errors.Join(errs[:]...)
		}))
		return keys
	}
	first := inside("order:1")
	require.Equal(t, first, inside("order:1"))
	other := inside("order:2")
	all := map[string]bool{"": true}
	for _, key := range append(first[:], other[:]...) {
		require.False(t, all[key], "%s twice", key)
		all[key] = true
	}
}

func TestB73_Redirect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+w.relay.Addr+"/moved", strings.NewReader("{}"))
	require.NoError(t, err)
	res, err := w.client().Do(r)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusCreated, res.StatusCode)
	posts := w.arrived("POST")
	require.Len(t, posts, 2)
	require.NotEmpty(t, posts[0].key)
	require.Equal(t, posts[0].key, posts[1].key, "the same operation, elsewhere")
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	before := ""
	for range 1000 {
		key := client.NewKey()
		require.Greater(t, key, before, "ordered by their time")
		before = key
	}
	require.NoError(t, idempotent.KeyMaxAge(time.Minute)(before))
}

// failures counts the attempts that got no answer.
type failures struct {
	base http.RoundTripper
	n    atomic.Int64
}

func (f *failures) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := f.base.RoundTrip(r)
	if err != nil {
		f.n.Add(1)
	}
	return res, err
}

func TestB74_LostAnswers(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]struct {
		begin, end func(w *world) // end: once an attempt has failed
		arrives    bool           // end: once the request has arrived, instead
	}{
		"answer swallowed": {begin: func(w *world) { w.relay.SwallowReply(isPost) }},
		"nobody listens":   {begin: func(w *world) { w.relay.Cut() }, end: func(w *world) { w.relay.Mend() }},
		"answer held":      {begin: func(w *world) { w.relay.HoldReply(func(b, _ []byte) bool { return isPost(b) }) }},
		"request held":     {begin: func(w *world) { w.relay.HoldRequest(isPost) }},
		"stalled":          {begin: func(w *world) { w.relay.Stall() }, end: func(w *world) { w.relay.Resume() }},
		"half closed": {
			begin: func(w *world) { w.relay.Stall() }, arrives: true,
			end: func(w *world) { w.relay.HalfClose(); w.relay.Resume() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			spoil.begin(w)
			f := &failures{base: base(t)}
			c := &http.Client{Transport: client.New(f, client.WithRetries(100), client.WithAttemptTimeout(500*time.Millisecond))}
			done := make(chan struct{})
			var got order
			var err error
			go func() {
				defer close(done)
				got, err = do(t.Context(), c, w.url)
			}()
			if spoil.end != nil {
				w.until("spoilt", func() bool { return f.n.Load() > 0 || spoil.arrives && len(w.arrived("POST")) > 0 })
				spoil.end(w)
			}
			<-done
			require.NoError(t, err)
			require.Equal(t, order{1}, got)
			require.EqualValues(t, 1, w.runs.Load(), "nothing runs twice")
			require.Positive(t, f.n.Load(), "something was to fail")
		})
	}
}

// An answer that breaks off is a lost one.
func TestB74_AnswerCut(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	var keys []string
	serving.Go(func() {
		for n := 1; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(conn))
			if err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				keys = append(keys, r.Header.Get("Idempotency-Key"))
			}
			switch n {
			case 1:
				_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{\"ru")
			case 2:
				_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"ru\r\n")
			case 3:
				_, _ = io.WriteString(conn, "HTTP/1.1 201 Cre")
			default:
				_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\n{\"run\":4}")
			}
			_ = conn.Close()
		}
	})
	c := &http.Client{Transport: client.New(base(t), client.WithBackOff(time.Millisecond, time.Millisecond))}
	got, err := do(t.Context(), c, "http://"+l.Addr().String())
	require.NoError(t, err)
	require.Equal(t, order{4}, got)
	require.NoError(t, l.Close())
	serving.Wait()
	require.Len(t, keys, 4)
	for _, key := range keys {
		require.Equal(t, keys[0], key)
	}
}

func TestB74_InFlight(t *testing.T) {
	t.Parallel()
	entered, open := make(chan struct{}), make(chan struct{})
	var w *world
	w = newWorld(t, func(rw http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-open
		w.created(rw)
	})
	ctx := client.WithKey(t.Context(), "k")
	results := make(chan order, 2)
	send := func() {
		got, err := do(ctx, w.client(), w.url)
		if err != nil {
			t.Error(err)
		}
		results <- got
	}
	go send()
	<-entered
	go send()
	w.until("the second one has asked", func() bool { return len(w.arrived("POST")) >= 2 })
	close(open)
	require.Equal(t, order{1}, <-results)
	require.Equal(t, order{1}, <-results)
	require.EqualValues(t, 1, w.runs.Load())
}

// What fails before anything can have been sent fails once, as it is.
func TestB74_NotSent(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for _, target := range []string{"ftp://shop/", secure.URL} {
		_, err := do(t.Context(), &http.Client{Transport: client.New(base(t))}, target)
		require.Error(t, err)
		require.NotErrorIs(t, err, idempotent.ErrOutcomeUnknown, target)
		if target == secure.URL {
			var untrusted *tls.CertificateVerificationError
			require.ErrorAs(t, err, &untrusted)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &fake{}
	_, err := do(ctx, &http.Client{Transport: client.New(f)}, "http://shop/")
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	require.Empty(t, f.sent)
}

// exchange sends one request through answers, in fake time.
func exchange(t *testing.T, answers func(n int, r *http.Request) (*http.Response, error), opts ...client.Option) (*fake, *http.Response, error) {
	t.Helper()
	f := &fake{answers: answers}
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://shop/orders", strings.NewReader("{}"))
	require.NoError(t, err)
	res, err := client.New(f, opts...).RoundTrip(r)
	if err == nil {
		t.Cleanup(func() { _ = res.Body.Close() })
	}
	return f, res, err
}

func TestB75_RefusalsWhereAsked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status  int
		fields  []string
		retried bool
	}{
		{429, nil, true},
		{429, []string{"Retry-After", "2"}, true},
		{503, []string{"Retry-After", "2"}, true},
		{503, nil, false},
		{503, []string{"Retry-After", "2", "Idempotent-Replayed", "true"}, false},
		{429, []string{"Idempotent-Replayed", "true"}, false},
		{500, []string{"Retry-After", "2"}, false},
	} {
		for _, asked := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var opts []client.Option
				if asked {
					opts = append(opts, client.WithRetryRefusals())
				}
				answers := func(n int, r *http.Request) (*http.Response, error) {
					if n == 2 {
						return reply(r, 201, "done"), nil
					}
					return reply(r, c.status, "no", c.fields...), nil
				}
				f, res, err := exchange(t, answers, opts...)
				require.NoError(t, err)
				if !asked || !c.retried {
					require.Equal(t, c.status, res.StatusCode)
					require.Len(t, f.sent, 1)
					return
				}
				require.Equal(t, 201, res.StatusCode)
				require.Len(t, f.sent, 2)
				if c.fields != nil {
					require.GreaterOrEqual(t, f.at[1].Sub(f.at[0]), 2*time.Second)
				}
				// The last refusal is an answer too.
				f, res, err = exchange(t, func(_ int, r *http.Request) (*http.Response, error) {
					return reply(r, c.status, "no", c.fields...), nil
				}, opts...)
				require.NoError(t, err)
				require.Equal(t, c.status, res.StatusCode)
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.Equal(t, "no", string(body))
				require.Len(t, f.sent, 4)
			})
		}
	}
}

func TestB76_AnswersAreFinal(t *testing.T) {
	t.Parallel()
	problem := []string{"Content-Type", "application/problem+json"}
	for _, c := range []struct {
		status int
		body   string
		fields []string
	}{
		{status: 200},
		{status: 400},
		{status: 401},
		{status: 408},
		{422, `{"code":"key-reused"}`, problem},
		{409, `{"code":"outcome-unknown"}`, problem},
		{409, `{"code":"in-flight"}`, []string{"Content-Type", "application/json"}}, // the operation's own
		{409, `{"code":"in-flight"}`, []string{"Content-Type", "application/problem+json", "Idempotent-Replayed", "true"}},
		{409, `{"code":`, problem},
		{409, strings.Repeat(" ", 100<<10) + `{"code":"in-flight"}`, problem},
		{status: 409},
		{status: 500},
		{500, "", []string{"Idempotent-Replayed", "true"}},
		{status: 502},
		{status: 503},
		{503, "", []string{"Retry-After", "1"}},
		{429, "", []string{"Retry-After", "1"}},
	} {
		f, res, err := exchange(t, func(_ int, r *http.Request) (*http.Response, error) {
			return reply(r, c.status, c.body, c.fields...), nil
		})
		require.NoError(t, err)
		require.Equal(t, c.status, res.StatusCode)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, c.body, string(body), "the caller reads the whole")
		require.Len(t, f.sent, 1, "%d %s", c.status, c.body)
	}
}

func TestB77_Pacing(t *testing.T) {
	t.Parallel()
	reset := func(int, *http.Request) (*http.Response, error) { return nil, syscall.ECONNRESET }
	synctest.Test(t, func(t *testing.T) {
		// Full jitter: from nothing to twice as much each time.
		var least, most [3]time.Duration
		for i := range least {
			least[i] = time.Hour
		}
		for range 200 {
			f, _, err := exchange(t, reset)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.Len(t, f.sent, 4, "three retries")
			for i := range least {
				pause := f.at[i+1].Sub(f.at[i])
				least[i], most[i] = min(least[i], pause), max(most[i], pause)
			}
		}
		for i, limit := range []time.Duration{100, 200, 400} {
			limit *= time.Millisecond
			require.LessOrEqual(t, most[i], limit+time.Microsecond)
			require.Greater(t, most[i], limit*9/10)
			require.Less(t, least[i], limit/10)
		}
		f, _, _ := exchange(t, reset, client.WithRetries(20), client.WithBackOff(time.Second, 2*time.Second))
		for i := range 20 {
			require.LessOrEqual(t, f.at[i+1].Sub(f.at[i]), 2*time.Second+time.Microsecond)
		}
		f, _, _ = exchange(t, reset, client.WithRetries(0))
		require.Len(t, f.sent, 1)
	})
}

func TestB77_RetryAfterIsAFloor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, date := range []bool{false, true} {
			field := "7"
			if date {
				field = time.Now().Add(7500 * time.Millisecond).UTC().Format(http.TimeFormat)
			}
			f, res, err := exchange(t, func(n int, r *http.Request) (*http.Response, error) {
				if n == 1 {
					return replyInFlight(r, "Retry-After", field), nil
				}
				return reply(r, 201, ""), nil
			})
			require.NoError(t, err)
			require.Equal(t, 201, res.StatusCode)
			require.GreaterOrEqual(t, f.at[1].Sub(f.at[0]), 7*time.Second)
			require.Less(t, f.at[1].Sub(f.at[0]), 8*time.Second)
		}
		// One that is longer than all the time there is: nothing is waited for.
		for _, field := range []string{"3600", "2147483648", "99999999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"} {
			began := time.Now()
			f, _, err := exchange(t, func(_ int, r *http.Request) (*http.Response, error) {
				return replyInFlight(r, "Retry-After", field), nil
			})
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
			require.Len(t, f.sent, 1, field)
			require.Zero(t, time.Since(began))
		}
	})
}

// hang answers nothing until the attempt ends.
func hang(_ int, r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestB77_Deadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _, err := exchange(t, hang)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, f.sent, 4)
		for i := range 3 {
			require.GreaterOrEqual(t, f.at[i+1].Sub(f.at[i]), client.DefaultAttemptTimeout)
		}
		began := time.Now()
		_, _, err = exchange(t, hang, client.WithRetries(1000))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Equal(t, client.DefaultTotalTimeout, time.Since(began), "all attempts together")

		// The caller's context ends everything.
		for _, answers := range []func(int, *http.Request) (*http.Response, error){
			hang,
			func(_ int, r *http.Request) (*http.Response, error) {
				return replyInFlight(r, "Retry-After", "5"), nil // it pauses
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, cancel)
			began = time.Now()
			_, err = do(ctx, &http.Client{Transport: client.New(&fake{answers: answers})}, "http://shop/")
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
			require.Equal(t, 3*time.Second, time.Since(began))
		}
	})
}

func TestB77_Bodies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, rewinds := range []bool{true, false} {
			f := &fake{answers: func(n int, r *http.Request) (*http.Response, error) {
				if n < 3 {
					return nil, io.ErrUnexpectedEOF
				}
				return reply(r, 201, ""), nil
			}}
			r, err := http.NewRequestWithContext(t.Context(), "POST", "http://shop/orders", strings.NewReader("the body"))
			require.NoError(t, err)
			if !rewinds {
				r.GetBody = nil
			}
			res, err := client.New(f).RoundTrip(r)
			if rewinds {
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				require.Len(t, f.sent, 3)
			} else {
				require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
				require.Len(t, f.sent, 1)
			}
			for _, s := range f.sent {
				require.Equal(t, "the body", s.body)
			}
		}
	})
}

// Go's transport sends a request with a key again by itself when a connection
// that it reuses breaks. The key is the same, so nothing runs twice.
func TestB77_HiddenResend(t *testing.T) {
	t.Parallel()
	var w *world
	w = newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Idempotency-Key"), "abort") {
			panic(http.ErrAbortHandler)
		}
		w.created(rw)
	})
	c := w.client(client.WithRetries(0))
	_, err := do(t.Context(), c, w.url) // warms the connection
	require.NoError(t, err)
	require.EqualValues(t, 1, w.runs.Load())

	_, err = do(client.WithKey(t.Context(), "abort"), c, w.url)
	var answer *client.AnswerError
	require.ErrorAs(t, err, &answer)
	require.Equal(t, "operation-aborted", answer.Code)
	require.True(t, answer.Replayed)
	require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	require.EqualValues(t, 2, w.runs.Load(), "it ran once")
	posts := w.arrived("POST")
	require.Len(t, posts, 3, "and was sent twice, without a retry of ours")
	require.Equal(t, posts[1], posts[2])

	// The same where the answer is swallowed on its way.
	_, err = do(t.Context(), c, w.url)
	require.NoError(t, err)
	w.relay.SwallowReply(isPost)
	got, err := do(t.Context(), c, w.url)
	require.NoError(t, err)
	require.Equal(t, order{4}, got)
	require.EqualValues(t, 4, w.runs.Load())
	require.Len(t, w.arrived("POST"), 6)
}

func TestB78_OutcomeUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.relay.Cut()
	_, err := do(t.Context(), w.client(client.WithRetries(2)), w.url)
	var unknown *client.UnknownError
	require.ErrorAs(t, err, &unknown)
	require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	require.Equal(t, 3, unknown.Attempts)
	require.ErrorContains(t, err, "outcome unknown")
	require.ErrorContains(t, err, unknown.Key)
	_, err = uuid.Parse(unknown.Key)
	require.NoError(t, err)

	// Through http.Client alone the error is the same, wrapped.
	r, err := http.NewRequestWithContext(client.WithKey(t.Context(), "mine"), "POST", w.url, http.NoBody)
	require.NoError(t, err)
	res, err := w.client(client.WithRetries(0)).Do(r)
	if err == nil {
		_ = res.Body.Close()
	}
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, "mine", unknown.Key)
	require.ErrorAs(t, err, new(*url.Error))
	require.Zero(t, w.runs.Load())

	// In flight until the retries end: it is not known what becomes of it.
	synctest.Test(t, func(t *testing.T) {
		f, _, err := exchange(t, func(_ int, r *http.Request) (*http.Response, error) { return replyInFlight(r), nil })
		require.ErrorAs(t, err, &unknown)
		require.ErrorContains(t, err, "in flight")
		require.Len(t, f.sent, 4)
		for _, s := range f.sent {
			require.Equal(t, unknown.Key, s.key, "no key is made anew")
		}
	})
}

// After a time-out the status is asked for: what still runs is not sent again.
func TestStatus_AskedBeforeSendingAgain(t *testing.T) {
	t.Parallel()
	for _, scope := range []bool{false, true} {
		entered, open := make(chan struct{}), make(chan struct{})
		var w *world
		opts := []idempotent.HTTPOption{}
		if scope {
			opts = append(opts, idempotent.WithPrincipalScope())
		}
		w = newWorld(t, func(rw http.ResponseWriter, _ *http.Request) {
			close(entered)
			<-open
			w.created(rw)
		}, opts...)
		more := []client.Option{client.WithStatusURL("/operations"), client.WithAttemptTimeout(2 * time.Second)}
		if scope {
			more = append(more, client.WithPrincipalScope())
		}
		go func() {
			<-entered
			w.until("it asks, and asks again", func() bool { return len(w.arrived("GET")) >= 2 })
			if n := len(w.arrived("POST")); n != 1 {
				t.Errorf("sent %d times while it ran", n)
			}
			close(open)
		}()
		got, err := do(t.Context(), w.client(more...), w.url)
		require.NoError(t, err)
		require.Equal(t, order{1}, got)
		require.EqualValues(t, 1, w.runs.Load())
		require.GreaterOrEqual(t, len(w.arrived("POST")), 2)
	}
}

// Whatever the status query says or does not, the request follows.
func TestStatus_Answers(t *testing.T) {
	t.Parallel()
	statuses := map[string]func(r *http.Request) (*http.Response, error){
		"no record": func(r *http.Request) (*http.Response, error) {
			return reply(r, 404, `{"code":"no-record","state":"pending"}`), nil
		},
		"success": func(r *http.Request) (*http.Response, error) { return reply(r, 200, `{"state":"success"}`), nil },
		"garbage": func(r *http.Request) (*http.Response, error) { return reply(r, 200, `pending`), nil },
		"failing": func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED },
		"hanging": func(r *http.Request) (*http.Response, error) { return hang(0, r) },
	}
	for kind, status := range statuses {
		synctest.Test(t, func(t *testing.T) {
			var queries []*http.Request
			posts := 0
			f := &fake{answers: func(_ int, r *http.Request) (*http.Response, error) {
				if r.Method == "GET" {
					queries = append(queries, r)
					return status(r)
				}
				if posts++; posts == 1 {
					return hang(0, r)
				}
				return reply(r, 201, `{"run":1}`), nil
			}}
			r, err := http.NewRequestWithContext(client.WithKey(t.Context(), "a&b"), "PATCH", "http://shop/a%2Fb?c=d", strings.NewReader("{}"))
			require.NoError(t, err)
			r.Header.Set("Authorization", "secret")
			r.Header.Set("Content-Type", "application/json")
			res, err := client.New(f, client.WithStatusURL("/operations")).RoundTrip(r)
			require.NoError(t, err, kind)
			require.NoError(t, res.Body.Close())
			require.Equal(t, 201, res.StatusCode)
			require.Equal(t, 2, posts)
			require.Len(t, queries, 1, kind)
			q := queries[0]
			require.Equal(t, "http://shop/operations?key=a%26b&method=PATCH&path=%2Fa%252Fb", q.URL.String())
			require.Equal(t, "secret", q.Header.Get("Authorization"))
			require.Equal(t, "wait=5", q.Header.Get("Prefer"))
			require.Empty(t, q.Header.Get("Content-Type"))
			require.Empty(t, q.Header.Get("Idempotency-Key"))
		})
	}
	// A connection that never came about has nothing to ask for.
	synctest.Test(t, func(t *testing.T) {
		f, _, err := exchange(t, func(int, *http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }, client.WithStatusURL("/operations"))
		require.Error(t, err)
		require.Len(t, f.sent, 4)
	})
}

// A request that names its host itself is asked for there, and not at whoever
// else answers at that address.
func TestStatus_HostOfTheRequest(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{"/operations": "shop.example", "http://status.example/operations": "status.example"} {
		synctest.Test(t, func(t *testing.T) {
			host := ""
			f := &fake{answers: func(n int, r *http.Request) (*http.Response, error) {
				switch n {
				case 1:
					return hang(0, r)
				case 2:
					host = r.Host
					return reply(r, 404, ""), nil
				}
				return reply(r, 201, ""), nil
			}}
			r, err := http.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/orders", http.NoBody)
			require.NoError(t, err)
			r.Host = "shop.example"
			res, err := client.New(f, client.WithStatusURL(base)).RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Len(t, f.sent, 3)
			require.Equal(t, want, host)
		})
	}
}

func TestDo_Answers(t *testing.T) {
	t.Parallel()
	problem := []string{"Content-Type", "application/problem+json; charset=utf-8"}
	for _, c := range []struct {
		status int
		body   string
		fields []string
		want   order
		err    error
		code   string
	}{
		{status: 201, body: `{"run":3}`, want: order{3}},
		{status: 204},
		{status: 200, body: `{`, err: idempotent.ErrResultUnavailable},
		{status: 200, body: `"` + strings.Repeat("x", client.MaxResult) + `"`, err: idempotent.ErrResultUnavailable},
		{status: 422, body: `{"code":"key-reused","new_key_safe":false}`, fields: problem, err: idempotent.ErrKeyReused, code: "key-reused"},
		{status: 409, body: `{"code":"outcome-unknown"}`, fields: problem, err: idempotent.ErrOutcomeUnknown, code: "outcome-unknown"},
		{status: 409, body: `{"code":"result-unavailable"}`, fields: problem, err: idempotent.ErrResultUnavailable, code: "result-unavailable"},
		{status: 412, body: `{"code":"key-expired"}`, fields: problem, err: idempotent.ErrKeyExpired, code: "key-expired"},
		{status: 401, body: `{"code":"unauthenticated","retryable":true}`, fields: problem, err: idempotent.ErrUnauthenticated, code: "unauthenticated"},
		{status: 404, body: "no such shop"},
		{status: 302, body: ""},
	} {
		f := &fake{answers: func(_ int, r *http.Request) (*http.Response, error) {
			return reply(r, c.status, c.body, c.fields...), nil
		}}
		got, err := do(client.WithKey(t.Context(), "k"), &http.Client{Transport: client.New(f)}, "http://shop/")
		require.Equal(t, c.want, got)
		require.Len(t, f.sent, 1)
		require.JSONEq(t, `{"amount":1}`, f.sent[0].body)
		if c.err != nil {
			require.ErrorIs(t, err, c.err)
		}
		if c.status < 300 {
			require.Equal(t, c.err == nil, err == nil, "%v", err)
			continue
		}
		if c.status == 302 { // no Location: http.Client itself refuses it
			require.Error(t, err)
			continue
		}
		var answer *client.AnswerError
		require.ErrorAs(t, err, &answer)
		require.Equal(t, c.status, answer.Status)
		require.Equal(t, c.code, answer.Code)
		require.Equal(t, c.body, string(answer.Body))
		require.Equal(t, "k", answer.Key)
		require.Equal(t, c.status == 401, answer.Retryable)
		require.ErrorContains(t, err, fmt.Sprint(c.status))
	}
	_, err := client.Do[order](t.Context(), http.DefaultClient, "POST", "http://shop/", func() {})
	require.Error(t, err)
	_, err = client.Do[order](t.Context(), http.DefaultClient, "POST", "http://a b/", nil)
	require.Error(t, err)
}

// What http.Client says itself hides that the request was sent.
func TestDo_SentAndUnknown(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	w := newWorld(t, func(http.ResponseWriter, *http.Request) { <-ended })
	t.Cleanup(func() { close(ended) })
	moved := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", "http://shop:port/")
		rw.WriteHeader(http.StatusSeeOther)
	}))
	t.Cleanup(moved.Close)
	patient := client.New(base(t))
	key := "k"
	requireUnknown := func(err error) {
		var unknown *client.UnknownError
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, key, unknown.Key)
		require.Equal(t, 1, unknown.Attempts)
	}
	for _, transport := range []http.RoundTripper{patient, base(t)} {
		// Long enough for the request to arrive, however busy the machine.
		timeout, before := 50*time.Millisecond, len(w.arrived("POST"))
		var err error
		for len(w.arrived("POST")) == before {
			timeout *= 2
			key = client.NewKey()
			_, err = do(client.WithKey(t.Context(), key), &http.Client{Transport: transport, Timeout: timeout}, w.url)
		}
		requireUnknown(err)
	}
	_, err := do(client.WithKey(t.Context(), key), &http.Client{Transport: patient}, moved.URL)
	requireUnknown(err)
	require.ErrorContains(t, err, "Location")

	// And where nothing was sent it is not said.
	for _, c := range []*http.Client{{Transport: patient}, {Transport: base(t)}} {
		_, err := do(t.Context(), c, "gopher://shop/")
		require.Error(t, err)
		require.NotErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	}
}

func TestOptions_Panic(t *testing.T) {
	t.Parallel()
	for _, make := range []func(){
		func() { client.WithRetries(-1) },
		func() { client.WithBackOff(0, time.Second) },
		func() { client.WithBackOff(time.Second, time.Millisecond) },
		func() { client.WithAttemptTimeout(0) },
		func() { client.WithTotalTimeout(-1) },
		func() { client.WithStatusURL("") },
		func() { client.WithStatusURL("/a?b") },
	} {
		require.Panics(t, make)
	}
	_ = client.New(nil, client.Option{})
}
