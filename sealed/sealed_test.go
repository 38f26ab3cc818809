package sealed_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sealed"
)

const owner = "owner-a"

func outcome(result string) idempotent.Outcome {
	return idempotent.Outcome{Status: idempotent.Success, Result: result, Fingerprint: "fp", Retention: time.Hour}
}

var claim = idempotent.Claim{Owner: "owner-b", Lease: time.Minute, Keep: time.Hour}

// bench is a sealed store and what is below it.
type bench struct {
	*testing.T
	inner, store idempotent.Store
}

func newBench(t *testing.T, opts ...sealed.Option) bench {
	inner := mem(t)
	return bench{t, inner, sealed.New(inner, keys(t, "a"), opts...)}
}

// seal records result under key and returns what the store below has of it.
func (b bench) seal(key, result string) idempotent.Entry {
	b.Helper()
	require.NoError(b, b.store.Complete(b.Context(), key, owner, outcome(result)))
	e, found, err := b.inner.Load(b.Context(), key)
	require.NoError(b, err)
	require.True(b, found)
	return e
}

// plant has the store below keep a record of owner under key.
func (b bench) plant(key, owner string, o idempotent.Outcome) {
	b.Helper()
	require.NoError(b, idempotent.Delete(b.Context(), b.inner, key))
	require.NoError(b, b.inner.Complete(b.Context(), key, owner, o))
}

// refuses expects every method that would answer with key's result to return
// want, and returns the text.
func (b bench) refuses(store idempotent.Store, key string, want error) string {
	b.Helper()
	e, found, err := store.Load(b.Context(), key)
	require.ErrorIs(b, err, want)
	require.False(b, found)
	require.Zero(b, e)
	text := err.Error()
	e, claimed, err := store.Claim(b.Context(), key, claim)
	require.ErrorIs(b, err, want)
	require.False(b, claimed)
	require.Zero(b, e)
	_, _, err = idempotent.Wait(b.Context(), store, key)
	require.ErrorIs(b, err, want)
	require.NotContains(b, text, key, "a store key in an error's text")
	return text
}

func (b bench) answers(store idempotent.Store, key, result string) {
	b.Helper()
	e, found, err := store.Load(b.Context(), key)
	require.NoError(b, err)
	require.True(b, found)
	require.Equal(b, result, e.Result)
}

// Whatever is recorded comes back, and the store below has none of it.
func TestResultIsSealed(t *testing.T) {
	secret := "the answer is 42; "
	for name, opts := range map[string][]sealed.Option{"compressed": nil, "not compressed": {sealed.WithoutCompression()}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, opts...)
			for i, result := range []string{"", secret, "\xff", "\xffSL\x01", strings.Repeat(secret, 10_000)} {
				key := fmt.Sprint("key ", i)
				e := b.seal(key, result)
				require.NotContains(t, e.Result, secret)
				require.NotEmpty(t, e.Result)
				b.answers(b.store, key, result)

				e.Result = result
				got, _, err := b.store.Load(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, e, got, "all else is the store's")
			}
		})
	}
}

// Two sends of one completion are the same bytes to the store below, whatever
// was sealed in between, and also from another process.
func TestSealingIsRepeatable(t *testing.T) {
	b := newBench(t)
	other := sealed.New(b.inner, keys(t, "a"))
	for i, result := range []string{"", "short", strings.Repeat(`{"order":17,"state":"paid"}`, 5000)} {
		key := fmt.Sprint("key ", i)
		first := b.seal(key, result)
		for range 20 {
			b.seal("another "+key, strings.Repeat("something else ", 3000))
			require.NoError(t, idempotent.Delete(t.Context(), b.inner, "another "+key))
			require.Equal(t, first.Result, b.seal(key, result).Result)
			require.NoError(t, other.Complete(t.Context(), key, owner, outcome(result)))
		}
		require.ErrorIs(t, b.store.Complete(t.Context(), key, owner, outcome(result+".")), idempotent.ErrLost)
	}
}

// Equal results of different keys, owners and statuses look unrelated.
func TestSealsDiffer(t *testing.T) {
	b := newBench(t)
	seen := map[string]bool{}
	for _, key := range []string{"k", "l", "kk"} {
		for _, owner := range []string{"o", "ko"} { // "k"+"ko" and "kk"+"o" are one text
			for _, o := range []idempotent.Outcome{
				{Status: idempotent.Success}, {Status: idempotent.Failed}, {Status: idempotent.Failed, Unknown: true},
			} {
				o.Result, o.Retention = "result", time.Hour
				require.NoError(t, b.store.Complete(t.Context(), key, owner, o))
				e, _, err := b.inner.Load(t.Context(), key)
				require.NoError(t, err)
				const nonce = len("\xffSL") + 3 + len("a")
				require.False(t, seen[e.Result[nonce:nonce+12]])
				require.False(t, seen[e.Result[nonce+12:]])
				seen[e.Result[nonce:nonce+12]], seen[e.Result[nonce+12:]] = true, true
				require.NoError(t, idempotent.Delete(t.Context(), b.store, key))
			}
		}
	}
}

// A record is an answer only where, by whom and as what it was recorded.
func TestMovedRecordIsCorrupt(t *testing.T) {
	b := newBench(t)
	o := outcome(b.seal("moved record", "result").Result)
	b.plant("moved record", owner, o)
	b.answers(b.store, "moved record", "result")

	b.plant("copied entry", owner, o)
	require.Contains(t, b.refuses(b.store, "copied entry", idempotent.ErrCorrupt), `key "a"`)
	b.plant("moved record", "owner-c", o)
	b.refuses(b.store, "moved record", idempotent.ErrCorrupt)
	o.Status = idempotent.Failed
	b.plant("moved record", owner, o)
	b.refuses(b.store, "moved record", idempotent.ErrCorrupt)
	o.Unknown = true
	b.plant("moved record", owner, o)
	b.refuses(b.store, "moved record", idempotent.ErrCorrupt)
}

// No byte of a record may change, and none be missing or added.
func TestDamagedRecordIsRefused(t *testing.T) {
	b := newBench(t)
	for _, result := range []string{"", strings.Repeat("compressible ", 10)} {
		whole := b.seal("store-key", result).Result
		for i := range whole {
			b.plant("store-key", owner, outcome(whole[:i]))
			b.refuses(b.store, "store-key", idempotent.ErrCorrupt)
			damaged := []byte(whole)
			damaged[i] ^= 1
			b.plant("store-key", owner, outcome(string(damaged)))
			_, found, err := b.store.Load(t.Context(), "store-key")
			require.Error(t, err, "byte %d", i)
			require.True(t, errors.Is(err, idempotent.ErrCorrupt) || errors.Is(err, idempotent.ErrNewerFormat), err)
			require.False(t, found)
		}
		b.plant("store-key", owner, outcome(whole+"\x00"))
		b.refuses(b.store, "store-key", idempotent.ErrCorrupt)
		b.plant("store-key", owner, outcome(whole))
		b.answers(b.store, "store-key", result)
		require.NoError(t, idempotent.Delete(t.Context(), b.store, "store-key"))
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	b := newBench(t)
	b.plant("store-key", owner, outcome("\xffSL\x02 whatever comes"))
	require.Contains(t, b.refuses(b.store, "store-key", idempotent.ErrNewerFormat), "format 2")
}

// The first key seals, all open, and a missing one is named.
func TestRotation(t *testing.T) {
	b := newBench(t)
	with := func(ids ...string) idempotent.Store { return sealed.New(b.inner, keys(t, ids...)) }
	old, added, turned, dropped := with("2026-05"), with("2026-05", "2026-11"), with("2026-11", "2026-05"), with("2026-11")

	require.NoError(t, added.Complete(t.Context(), "before", owner, outcome("before")))
	require.NoError(t, turned.Complete(t.Context(), "after", owner, outcome("after")))
	for _, s := range []idempotent.Store{old, added, turned} {
		b.answers(s, "before", "before")
	}
	for _, s := range []idempotent.Store{added, turned, dropped} {
		b.answers(s, "after", "after")
	}
	text := b.refuses(dropped, "before", idempotent.ErrCorrupt)
	require.Contains(t, text, `"2026-05", which is missing`)
	require.Contains(t, text, `"2026-11"`, "what is there")
	require.Contains(t, b.refuses(old, "after", idempotent.ErrCorrupt), `"2026-11", which is missing`)

	impostor, err := sealed.NewKeys(sealed.Key{ID: "2026-05", Secret: make([]byte, 32)})
	require.NoError(t, err)
	require.Contains(t, b.refuses(sealed.New(b.inner, impostor), "before", idempotent.ErrCorrupt), `"2026-05" has another secret`)
}

func TestPlainResults(t *testing.T) {
	b := newBench(t)
	migrating := sealed.New(b.inner, keys(t, "a"), sealed.WithPlain())
	for i, result := range []string{"", "plain", "\xff"} {
		key := fmt.Sprint("store-key ", i)
		b.plant(key, owner, outcome(result))
		require.Contains(t, b.refuses(b.store, key, idempotent.ErrCorrupt), "WithPlain")
		b.answers(migrating, key, result)
	}
	sealedBefore := b.seal("store-key", "result").Result
	b.answers(migrating, "store-key", "result")
	b.plant("store-key", owner, outcome(sealedBefore[:len(sealedBefore)-1]+"?"))
	b.refuses(migrating, "store-key", idempotent.ErrCorrupt)
}

// A result that compression would make longer is kept as it is.
func TestCompressionOnlyShortens(t *testing.T) {
	long := strings.Repeat(`{"id":"0192f0c1","state":"paid"},`, 2000)
	b := newBench(t)
	noise := b.seal("source of noise", long).Result // random to whom it is not meant for
	for _, result := range []string{"", "a", "short", noise} {
		const overhead = len("\xffSL") + 3 + len("a") + 12 + 16
		require.Len(t, b.seal(fmt.Sprint("k", len(result)), result).Result, len(result)+overhead)
	}
	require.Less(t, len(noise), len(long)/10)
	without := newBench(t, sealed.WithoutCompression())
	require.Greater(t, len(without.seal("k", long).Result), len(long))
	b.plant("k", owner, outcome(without.seal("k", long).Result))
	b.answers(b.store, "k", long)
	without.plant("k", owner, outcome(b.seal("l", long).Result))
	without.plant("l", owner, outcome(b.seal("l", long).Result))
	without.answers(without.store, "l", long)
}

// A claim, also an abandoned one, has no result, and nothing to open.
func TestClaimsPass(t *testing.T) {
	b := newBench(t)
	lapsing := claim
	lapsing.Lease = idempotent.MinDuration
	for _, c := range []idempotent.Claim{claim, lapsing} {
		key := fmt.Sprint(c.Lease)
		e, claimed, err := b.store.Claim(t.Context(), key, c)
		require.NoError(t, err)
		require.True(t, claimed)
		require.Equal(t, idempotent.Pending, e.Status)
	}
	e, found, err := idempotent.Wait(t.Context(), b.store, fmt.Sprint(lapsing.Lease))
	require.NoError(t, err)
	require.True(t, found)
	require.True(t, e.Unknown)
}

// bare is a store without any optional ability.
type bare struct{ idempotent.Store }

// An ability is there where the store below has it.
func TestAbilities(t *testing.T) {
	b := newBench(t)
	b.seal("k", "result")
	page, err := idempotent.List(t.Context(), b.store, idempotent.ListQuery{})
	innerPage, innerErr := idempotent.List(t.Context(), b.inner, idempotent.ListQuery{})
	require.Equal(t, innerPage, page)
	require.Equal(t, fmt.Sprint(innerErr), fmt.Sprint(err))
	require.Implements(t, (*idempotent.Sweeper)(nil), b.store)

	s := sealed.New(bare{b.inner}, keys(t, "a"))
	b.answers(s, "k", "result")
	require.NotImplements(t, (*idempotent.Sweeper)(nil), s)
	require.ErrorIs(t, idempotent.Delete(t.Context(), s, "k"), errors.ErrUnsupported)
	_, err = idempotent.List(t.Context(), s, idempotent.ListQuery{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NoError(t, idempotent.Ping(t.Context(), s))
	e, _, err := idempotent.Wait(t.Context(), s, "k")
	require.NoError(t, err)
	require.Equal(t, "result", e.Result)
	require.Equal(t, []idempotent.Store{bare{b.inner}}, idempotent.Stores(s))
}

func TestKeysAreChecked(t *testing.T) {
	short := sealed.Key{ID: "short", Secret: []byte("a password")}
	for text, all := range map[string][]sealed.Key{
		"no key":              nil,
		"10 bytes":            {key("a"), short},
		"0 bytes; use 1":      {{Secret: key("a").Secret}},
		"256 bytes; use 1":    {{ID: strings.Repeat("i", 256), Secret: key("a").Secret}},
		`two keys are called`: {key("a"), key("b"), key("a")},
	} {
		_, err := sealed.NewKeys(all...)
		require.ErrorContains(t, err, text)
		require.NotContains(t, err.Error(), "a password")
	}
	require.Panics(t, func() { sealed.New(nil, keys(t, "a")) })
	require.Panics(t, func() { sealed.New(mem(t), sealed.Keys{}) })

	// The secrets are copied.
	mine := key("a")
	k, err := sealed.NewKeys(mine)
	require.NoError(t, err)
	b := newBench(t)
	b.seal("k", "result")
	clear(mine.Secret)
	b.answers(sealed.New(b.inner, k), "k", "result")
}

// Printing a key, on its own or with whatever holds it, prints no secret.
func TestSecretsAreNotPrinted(t *testing.T) {
	k := sealed.Key{ID: "a", Secret: []byte(strings.Repeat("SECRET", 6))}
	set, err := sealed.NewKeys(k)
	require.NoError(t, err)
	for _, v := range []any{k, &k, []sealed.Key{k}, struct{ Key sealed.Key }{k}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			text := fmt.Sprintf(verb, v)
			require.NotContains(t, text, "SECRET", verb)
			require.NotContains(t, text, "83, 69", verb)
			require.NotContains(t, text, "0x53", verb)
			require.NotContains(t, text, "83 69", verb)
		}
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.NotContains(t, string(text), "U0VDUkVU")
	}
	require.Less(t, len(fmt.Sprintf("%#v", set)), 80, "a pointer and no more")
}

// Behind the middleware, an answer is replayed as it was, and the store below
// has no word of it.
func TestGuard(t *testing.T) {
	b := newBench(t)
	runs := 0
	handler := idempotent.New(b.store).Middleware(func(*http.Request) (string, error) { return "alice", nil })(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs++
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "the card number")
		}))
	for range 2 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusCreated, w.Code)
		require.Equal(t, "the card number", w.Body.String())
	}
	require.Equal(t, 1, runs)

	var text strings.Builder
	name := idempotent.StoreKey(http.MethodPost, "/orders", "alice", "8e03978e-40d5-43dd-bc93-6894a57f9324")
	e, found, err := b.inner.Load(t.Context(), name)
	require.NoError(t, err)
	require.True(t, found)
	fmt.Fprintf(&text, "%+v", e)
	require.NotContains(t, text.String(), "card")

	// Without the package, the middleware refuses it and runs nothing.
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
	idempotent.New(b.inner).Middleware(func(*http.Request) (string, error) { return "alice", nil })(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runs++ })).ServeHTTP(w, r)
	require.GreaterOrEqual(t, w.Code, 500)
	require.Equal(t, 1, runs)
}
