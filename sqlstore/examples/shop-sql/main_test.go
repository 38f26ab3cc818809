package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

func TestMain(m *testing.M) {
	_ = driver.SetLogger(log.New(io.Discard, "", 0))
	code := m.Run()
	sqltest.Stop()
	os.Exit(code)
}

const wantTable = `
what was done or looked at                  expected                 seen                     ok
------------------------------------------------------------------------------------------------
an order                                    201 first                201 first                yes
the same again, Redis knows it              201 replay, same answer  201 replay, same answer  yes
Redis forgets everything                    yes                      yes                      yes
the same again, only the index knows it     201 first, same answer   201 first, same answer   yes
once more, Redis knows it again             201 replay, same answer  201 replay, same answer  yes
orders of this key                          1                        1                        yes
Redis forgets everything                    yes                      yes                      yes
another order under this key                422 first                422 first                yes
the same key of another customer            201 first                201 first                yes
twenty at once, Redis forgets all the time  one answer               one answer               yes
orders of this key                          1                        1                        yes
an order with a coupon                      201 first                201 first                yes
another one with the same coupon            409 first                409 first                yes
orders of this key                          0                        0                        yes
the first order is cancelled                204 first                204 first                yes
Redis forgets everything                    yes                      yes                      yes
the same again, the row is deleted softly   410 first                410 first                yes

all 17 rows are as expected
`

// flags name a new database of a kind.
func flags(t *testing.T, kind sqltest.Kind) []string {
	switch kind {
	case sqltest.Postgres:
		return []string{"-postgres", sqltest.New(t, kind).DSN}
	case sqltest.MySQL:
		return []string{"-mysql", sqltest.New(t, kind).DSN}
	}
	return nil
}

func TestDemo(t *testing.T) {
	play := func(t *testing.T, args ...string) {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"-demo"}, args...), &stdout, &stderr)
		require.Equal(t, strings.TrimPrefix(wantTable, "\n"), stdout.String())
		require.Empty(t, stderr.String())
		require.Equal(t, 0, code)
	}
	t.Run("alone", func(t *testing.T) { play(t) })
	for _, kind := range sqltest.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			args := append(flags(t, kind), "-redis", "redis://"+redistest.Start(t).Addr)
			play(t, args...)
			play(t, args...) // an earlier run's orders and keys are still there
		})
	}
}

// opened is a shop on a Redis server and a database of its own.
func opened(t *testing.T, kind sqltest.Kind) (*story, *redistest.Server) {
	server := redistest.Start(t)
	s := settings{redis: "redis://" + server.Addr}
	if f := flags(t, kind); kind == sqltest.Postgres {
		s.postgres = f[1]
	} else if kind == sqltest.MySQL {
		s.mysql = f[1]
	}
	v, err := open(t.Context(), s, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.close()) })
	return &story{
		service: v, ctx: context.Background(), customer: "ada", coupon: "SPRING",
		handler: v.shop.handler(v.guard.Middleware(principal)),
	}, server
}

// Redis is flushed between the two attempts. The index alone stops the second
// order: the client gets the first one's answer, and there is one row.
func TestRedisFlushed(t *testing.T) {
	for _, kind := range sqltest.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			s, server := opened(t, kind)
			first := s.post("key", tea)
			require.Equal(t, 201, first.status)
			require.NotEqual(t, "0", server.Must(t, "DBSIZE"))
			server.Must(t, "FLUSHALL")
			second := s.post("key", tea)
			require.Equal(t, "201 first, same answer", second.like(first), "%s, %s", first.body, second.body)
			require.Equal(t, "1", s.count("key"))
			server.Must(t, "FLUSHALL")
			require.Equal(t, 201, s.post(`"key"`, tea).status, "a quoted key is the same one")
			require.Equal(t, "1", s.count("key"))
		})
	}
}

// A story that cannot fail would show nothing: without the index there are two
// orders, and with all duplicates taken for the key's the coupon is misread.
func TestDemo_MarksFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(*story)
		wrong []string // beginnings of rows that must be marked
	}{
		"no index": {
			fault: func(s *story) {
				_, err := s.shop.db.Exec("DROP TABLE shop_sql_orders")
				require.NoError(t, err)
				_, err = s.shop.db.Exec(strings.Replace(sqlite.schema, "UNIQUE (principal, idempotency_key), ", "", 1))
				require.NoError(t, err)
			},
			wrong: []string{
				"the same again, only the index knows it     201 first, same answer   201 first, another answer NO",
				"orders of this key                          1                        2                        NO",
				"another order under this key                422 first                201 first                NO",
			},
		},
		"the index is not recognised": {
			fault: func(s *story) {
				d := *s.shop.dialect
				d.once = "another"
				s.shop.dialect = &d
			},
			wrong: []string{"the same again, only the index knows it     201 first, same answer   500 first, another answer NO"},
		},
		"a Redis that keeps nothing": {
			fault: func(s *story) {
				next := s.handler
				s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_ = s.forget()
					next.ServeHTTP(w, r)
				})
			},
			wrong: []string{"the same again, Redis knows it              201 replay, same answer  201 first, same answer   NO"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := opened(t, sqltest.SQLite)
			c.fault(s)
			s.play()
			var out bytes.Buffer
			require.Equal(t, 1, s.print(&out))
			for _, row := range c.wrong {
				require.Contains(t, out.String(), row)
			}
			require.Contains(t, out.String(), "rows are wrong")
		})
	}
}

func TestRun_Refuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"help":          {[]string{"-h"}, 0, "-demo"},
		"no such flag":  {[]string{"-nonsense"}, 2, "nonsense"},
		"two databases": {[]string{"-postgres", "a", "-mysql", "b"}, 2, "choose one"},
		"no Redis":      {[]string{"-demo", "-redis", "redis://127.0.0.1:1"}, 1, "keys: "},
		"bad Redis URL": {[]string{"-demo", "-redis", "http://secret@host"}, 1, "the URL cannot be read"},
		"no PostgreSQL": {[]string{"-demo", "-postgres", "postgres://127.0.0.1:1/x"}, 1, "orders: "},
		"bad MySQL DSN": {[]string{"-demo", "-mysql", "secret@nowhere"}, 1, "orders: "},
		"bad address":   {[]string{"-addr", "nowhere:none"}, 1, "stopped"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, c.code, run(t.Context(), c.args, &stdout, &stderr), name)
		require.Contains(t, stderr.String(), c.says, name)
		require.NotContains(t, stderr.String(), "secret", name)
	}
}

// The shop serves until it is told to stop, and leaves nothing behind.
func TestRun_Serves(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &lines{seen: make(chan string, 10)}
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"-addr", "127.0.0.1:0"}, io.Discard, out) }()
	require.Contains(t, <-out.seen, "listening")
	cancel()
	require.Equal(t, 0, <-done)
}

// lines passes on what is written.
type lines struct{ seen chan string }

func (l *lines) Write(p []byte) (int, error) {
	l.seen <- string(p)
	return len(p), nil
}
