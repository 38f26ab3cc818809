package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

const goodClaim = "1 1 1 1 1 3600000 0 1796073242973170 1796073242973170 0\nkaft"

func TestDecodeClaim(t *testing.T) {
	t.Parallel()
	h, ok := decodeClaim(goodClaim)
	require.True(t, ok)
	require.Equal(t, held{
		key: "k", owner: "a", fingerprint: "f", trace: "t", keep: time.Hour,
		claimed: time.UnixMicro(1796073242973170).UTC(), fence: 1796073242973170,
	}, h)
	for name, claim := range map[string]string{
		"empty":             "",
		"no end of numbers": strings.TrimSuffix(goodClaim, "\nkaft"),
		"text cut":          goodClaim[:len(goodClaim)-1],
		"text too long":     goodClaim + "x",
		"a number more":     strings.Replace(goodClaim, " 0\n", " 0 0\n", 1),
		"a number less":     strings.Replace(goodClaim, " 0\n", "\n", 1),
		"space at the end":  strings.Replace(goodClaim, " 0\n", " 0 \n", 1),
		"two spaces":        strings.Replace(goodClaim, "1 1", "1  1", 1),
		"leading zero":      strings.Replace(goodClaim, "3600000", "03600000", 1),
		"sign":              strings.Replace(goodClaim, "3600000", "-3600000", 1),
		"letters":           strings.Replace(goodClaim, "3600000", "36e5", 1),
		"beyond exactness":  strings.Replace(goodClaim, "3600000", "9007199254740993", 1),
		"beyond an int64":   strings.Replace(goodClaim, "3600000", "99999999999999999999", 1),
		"flag":              strings.Replace(goodClaim, " 0 1796", " 2 1796", 1),
		"other flag":        strings.Replace(goodClaim, " 0\n", " 2\n", 1),
		"other format":      "2" + goodClaim[1:],
		"no key":            "1 0 1 1 1 3600000 0 1796073242973170 1796073242973170 0\naft",
		"no owner":          "1 1 0 1 1 3600000 0 1796073242973170 1796073242973170 0\nkft",
		"length too long":   "1 1 1 1 99 3600000 0 1796073242973170 1796073242973170 0\nkaft",
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
	good := "success" + at + "60\n" + goodClaim + "r"
	for name, c := range map[string]struct {
		reply string
		want  error
	}{
		"entry":                 {"e" + good, nil},
		"absent":                {"-", nil},
		"nothing":               {"", errAnswer},
		"unheard of":            {"?" + good, errAnswer},
		"a verdict":             {"+", errAnswer},
		"lost":                  {"!", idempotent.ErrLost},
		"no end of head":        {"e" + strings.ReplaceAll(good, "\n", " "), idempotent.ErrCorrupt},
		"claim longer than all": {"e" + strings.Replace(good, " 60\n", " 99\n", 1), idempotent.ErrCorrupt},
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
	require.Len(t, goodClaim, 60)
}

// Whatever Redis holds, the decoder says what it is or that it is nothing: it
// takes one spelling only, and invents nothing.
func FuzzRecord(f *testing.F) {
	at := " 1796073242973170 1796073302973170 1796073242973170 "
	for _, status := range []string{"pending", "success", "failed", "unknown", ""} {
		for _, kind := range "-+!xfceml" {
			f.Add("k", string(kind)+status+at+"60\n"+goodClaim+"r")
			f.Add("k", string(kind)+status+at+"60\n"+goodClaim)
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
			head, tail := encodeClaim(key, idempotent.Claim{Owner: h.owner, Fingerprint: h.fingerprint, Trace: h.trace, Keep: h.keep})
			require.True(t, strings.HasPrefix(claim, strings.TrimSuffix(head, "0 ")))
			require.True(t, strings.HasSuffix(claim, "\n"+tail))
		}
	})
}

func TestMillis(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		time.Millisecond:                             "1000",
		time.Millisecond + 1:                         "2000",
		1500*time.Millisecond + 500*time.Microsecond: "1501000",
		1<<63 - 1: "3153600000000000",
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
