package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

const goodClaim = "1 1 1\nka\n1 1 3600000 0\nft\n1796073242973170 0 0"

func TestDecodeClaim(t *testing.T) {
	t.Parallel()
	h, ok := decodeClaim(strings.Replace(goodClaim, " 0 0", " 5 1", 1))
	require.True(t, ok)
	require.Equal(t, held{
		key: "k", owner: "a", fingerprint: "f", trace: "t", keep: time.Hour,
		claimed: time.UnixMicro(1796073242973170).UTC(), fence: 1796073242973175,
	}, h)
	for name, claim := range map[string]string{
		"empty":                   "",
		"no end of numbers":       "1 1 1",
		"no second line":          "1 1 1\nka",
		"no server's line":        strings.TrimSuffix(goodClaim, "\n1796073242973170 0 0"),
		"end cut":                 goodClaim[:len(goodClaim)-1],
		"end too long":            goodClaim + "x",
		"line too many":           goodClaim + "\n",
		"key cut":                 strings.Replace(goodClaim, "ka", "a", 1),
		"owner too long":          strings.Replace(goodClaim, "ka", "kaa", 1),
		"trace cut":               strings.Replace(goodClaim, "ft", "f", 1),
		"trace too long":          strings.Replace(goodClaim, "ft", "ftt", 1),
		"a number more":           strings.Replace(goodClaim, " 0\nf", " 0 0\nf", 1),
		"a number less":           strings.Replace(goodClaim, " 0\nf", "\nf", 1),
		"space at the end":        strings.Replace(goodClaim, " 0\nf", " 0 \nf", 1),
		"two spaces":              strings.Replace(goodClaim, "1 1", "1  1", 1),
		"leading zero":            strings.Replace(goodClaim, "3600000", "03600000", 1),
		"sign":                    strings.Replace(goodClaim, "3600000", "-3600000", 1),
		"letters":                 strings.Replace(goodClaim, "3600000", "36e5", 1),
		"beyond exactness":        strings.Replace(goodClaim, "3600000", "9007199254740993", 1),
		"beyond an int64":         strings.Replace(goodClaim, "3600000", "99999999999999999999", 1),
		"flag":                    strings.Replace(goodClaim, " 0\nf", " 2\nf", 1),
		"other flag":              strings.TrimSuffix(goodClaim, "0") + "2",
		"other format":            "2" + goodClaim[1:],
		"no key":                  strings.Replace(goodClaim, "1 1 1\nk", "1 0 1\n", 1),
		"no owner":                strings.Replace(goodClaim, "1 1 1\nka", "1 1 0\nk", 1),
		"length too long":         strings.Replace(goodClaim, "1 1 3", "1 99 3", 1),
		"key longer than carried": strings.Replace(goodClaim, "1 1 1\nk", "1 41 1\n"+strings.Repeat("k", 41), 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ok := decodeClaim(claim)
			require.False(t, ok)
		})
	}
}

func TestDecodeLook(t *testing.T) {
	t.Parallel()
	at := " 1796073242973170 1796073302973170 1796073242973170 "
	good := "success" + at + "46\n" + goodClaim + "r"
	for name, c := range map[string]struct {
		reply string
		want  error
	}{
		"entry":                 {"e" + good, nil},
		"absent":                {"-", nil},
		"nothing":               {"", errAnswer},
		"unheard of":            {"?" + good, errAnswer},
		"a verdict":             {"+", errAnswer},
		"new":                   {"n1796073242973170 1796073302973170", errAnswer},
		"lost":                  {"!", idempotent.ErrLost},
		"no end of head":        {"e" + strings.ReplaceAll(good, "\n", " "), idempotent.ErrCorrupt},
		"claim longer than all": {"e" + strings.Replace(good, " 46\n", " 99\n", 1), idempotent.ErrCorrupt},
		"claimed a success":     {"c" + good, idempotent.ErrCorrupt},
		"lapsed with a result":  {"l" + strings.Replace(good, "success", "pending", 1), idempotent.ErrCorrupt},
		"pending with a result": {"e" + strings.Replace(good, "success", "pending", 1), idempotent.ErrCorrupt},
		"format without number": {"fx ", idempotent.ErrCorrupt},
		"format too long":       {"f12345678901234567", idempotent.ErrCorrupt},
		"newer":                 {"f17 3 4", idempotent.ErrNewerFormat},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decodeLook("k", c.reply)
			require.ErrorIs(t, err, c.want)
		})
	}
	require.Len(t, goodClaim, 46)
}

// Whatever Redis holds, the decoder says what it is or that it is nothing: it
// takes one spelling only, and invents nothing.
func FuzzRecord(f *testing.F) {
	at := " 1796073242973170 1796073302973170 1796073242973170 "
	for _, status := range []string{"pending", "success", "failed", "unknown", ""} {
		for _, kind := range "-+!xfnceml" {
			f.Add("k", string(kind)+status+at+"46\n"+goodClaim+"r")
			f.Add("k", string(kind)+status+at+"46\n"+goodClaim)
		}
	}
	f.Add("k", "f2 ")
	f.Fuzz(func(t *testing.T, key, reply string) {
		l, err := decodeLook(key, reply)
		if err != nil || !l.found {
			require.Zero(t, l)
			return
		}
		e := l.entry
		require.Equal(t, key, e.Key)
		require.NotEmpty(t, e.Owner)
		require.Contains(t, []idempotent.Status{idempotent.Pending, idempotent.Success, idempotent.Failed}, e.Status)
		require.True(t, !e.Unknown || e.Status == idempotent.Failed)
		require.True(t, strings.HasSuffix(reply, e.Result))
		_, body, _ := strings.Cut(reply, "\n")
		claim := strings.TrimSuffix(body, e.Result)
		h, ok := decodeClaim(claim)
		require.True(t, ok)
		if h.keep < longest {
			sent := encodeClaim(key, idempotent.Claim{Owner: h.owner, Fingerprint: h.fingerprint, Trace: h.trace, Keep: h.keep})
			require.True(t, strings.HasPrefix(sent, identity(key, h.owner)+"\n"))
			sent = strings.TrimSuffix(sent, "0\n"+h.fingerprint+h.trace)
			require.True(t, strings.HasPrefix(claim, sent))
		}
	})
}

func TestDecodeNew(t *testing.T) {
	t.Parallel()
	c := idempotent.Claim{Owner: "a", Fingerprint: "f", Trace: "t"}
	e, err := decodeNew("k", c, "n1796073242973170 1796073302973170")
	require.NoError(t, err)
	set := time.UnixMicro(1796073242973170).UTC()
	require.Equal(t, idempotent.Entry{
		Key: "k", Status: idempotent.Pending, Timestamp: set, Claimed: set, Expires: set.Add(time.Minute),
		Fingerprint: "f", Owner: "a", Trace: "t", Fence: 1796073242973170,
	}, e)
	for _, reply := range []string{"n", "n1", "n1 ", "n1 2 3", "n1 -2", "nx 2"} {
		e, err := decodeNew("k", c, reply)
		require.ErrorIs(t, err, errAnswer, reply)
		require.Zero(t, e)
	}
}

// Short keys are carried as they are, longer ones as a digest, and none of the
// former is one of the latter.
func TestCarried(t *testing.T) {
	t.Parallel()
	carried := func(key string) string { return string(appendCarried(nil, key)) }
	short := strings.Repeat("k", keyLongest)
	require.Equal(t, short, carried(short))
	long := carried(short + "k")
	require.Len(t, long, 1+keyDigest)
	require.NotEqual(t, long, carried(short+"l"))
	require.NotEqual(t, long, carried(long), "a key that looks like a digest")
	require.Equal(t, "#AqpHT73Ec3xoEIf6", carried("a key longer than what an entry carries as it is"), "frozen")
}

func TestMillis(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{
		time.Millisecond:                             1000,
		time.Millisecond + 1:                         2000,
		1500*time.Millisecond + 500*time.Microsecond: 1501000,
		1<<63 - 1: 3153600000000000,
	} {
		require.Equal(t, want, micros(d), d)
	}
}

// A client without a read time-out gets one, or a call whose caller has left
// could wait for ever.
func TestReadTimeoutIsBounded(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration]time.Duration{-1: readBound, -2: readBound, time.Second: time.Second} {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: given})
		t.Cleanup(func() { _ = client.Close() })
		s := New(client)
		require.Equal(t, want, s.client.(*redis.Client).Options().ReadTimeout)
		require.NoError(t, s.Close())
	}
}
