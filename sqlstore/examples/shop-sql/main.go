// Command shop-sql takes orders that are placed once, with two layers: Redis in
// front, which answers repeats fast, and a unique index behind, which stops a
// second order when Redis has forgotten the first.
//
//	go run ./sqlstore/examples/shop-sql -demo                             SQLite, and a Redis in the process
//	go run ./sqlstore/examples/shop-sql -demo -postgres URL -redis URL    the same story on servers
//	go run ./sqlstore/examples/shop-sql -demo -mysql DSN -redis URL
//	go run ./sqlstore/examples/shop-sql -redis URL                        serve on 127.0.0.1:8080
//
// Read shop.go first. The story adds orders of a customer of its own to the
// table shop_sql_orders, and forgets only its own keys in Redis.
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/go-sql-driver/mysql" // drivers
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings are the flags.
type settings struct {
	addr, postgres, mysql, redis string
	demo                         bool
}

// run is main with its surroundings passed in. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var s settings
	flags := flag.NewFlagSet("shop-sql", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.addr, "addr", "127.0.0.1:8080", "`address` to listen on")
	flags.StringVar(&s.postgres, "postgres", "", "`URL` of a PostgreSQL for the orders; without any, SQLite in a temporary file")
	flags.StringVar(&s.mysql, "mysql", "", "`DSN` of a MySQL or MariaDB for the orders")
	flags.StringVar(&s.redis, "redis", "", "`URL` of the Redis for the keys; without one, a miniredis in this process")
	flags.BoolVar(&s.demo, "demo", false, "play a story against the shop, print what happened, exit with 1 if any of it was wrong")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if s.postgres != "" && s.mysql != "" {
		_, _ = fmt.Fprintln(stderr, "shop-sql: -postgres and -mysql: choose one")
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if s.demo {
		log = slog.New(slog.DiscardHandler) // the table tells it all
	}
	v, err := open(ctx, s, log)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "shop-sql:", err)
		return 1
	}
	code := 0
	if s.demo {
		code = demo(ctx, stdout, v)
	} else if err := v.serve(ctx, s.addr); err != nil {
		log.Error("stopped", "err", err)
		code = 1
	}
	if err := v.close(); err != nil {
		_, _ = fmt.Fprintln(stderr, "shop-sql:", err)
		code = 1
	}
	return code
}

// service is the shop with both of its layers.
type service struct {
	log    *slog.Logger
	shop   *shop
	keys   *redis.Client // the layer in front
	prefix string        // of the keys in it
	guard  *idempotent.Guard
	closes []func() error
}

// close ends everything that open has begun, the last first.
func (v *service) close() error {
	var all error
	for i := len(v.closes) - 1; i >= 0; i-- {
		all = errors.Join(all, v.closes[i]())
	}
	v.closes = nil
	return all
}

func open(ctx context.Context, s settings, log *slog.Logger) (_ *service, err error) {
	v := &service{log: log, prefix: "shop-sql:"}
	if s.demo {
		v.prefix += rand.Text()[:8] + ":" // the story forgets no keys but its own
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.close())
		}
	}()
	db, d, err := v.openOrders(s)
	if err != nil {
		return nil, err
	}
	v.shop = &shop{db: db, dialect: d}
	if err := v.shop.migrate(ctx); err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	if err := v.openKeys(s); err != nil {
		return nil, err
	}
	store := redisstore.New(v.keys, redisstore.WithPrefix(v.prefix))
	v.closes = append(v.closes, store.Close)
	if err := idempotent.Ping(ctx, store); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	v.guard = idempotent.New(store, idempotent.WithLogger(log))
	return v, nil
}

// openOrders opens the database of the orders.
func (v *service) openOrders(s settings) (*sql.DB, *dialect, error) {
	d, dsn := &postgres, s.postgres
	switch {
	case s.mysql != "":
		d, dsn = &mysql, s.mysql
	case s.postgres == "":
		dir, err := os.MkdirTemp("", "shop-sql-")
		if err != nil {
			return nil, nil, err
		}
		v.closes = append(v.closes, func() error { return os.RemoveAll(dir) })
		d, dsn = &sqlite, "file:"+filepath.ToSlash(filepath.Join(dir, "orders.db"))+
			"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate"
	}
	db, err := sql.Open(d.driver, dsn)
	if err != nil {
		return nil, nil, errors.New("orders: the URL or DSN cannot be read") // it may hold a password
	}
	db.SetMaxOpenConns(16)
	v.closes = append(v.closes, db.Close)
	return db, d, nil
}

// openKeys opens the Redis of the keys.
func (v *service) openKeys(s settings) error {
	options := &redis.Options{}
	if s.redis == "" {
		m := miniredis.NewMiniRedis()
		if err := m.Start(); err != nil {
			return err
		}
		v.closes = append(v.closes, func() error { m.Close(); return nil })
		options.Addr = m.Addr()
	} else {
		var err error
		if options, err = redis.ParseURL(s.redis); err != nil {
			return errors.New("-redis: the URL cannot be read") // it may hold a password
		}
	}
	v.keys = redis.NewClient(options)
	v.closes = append(v.closes, v.keys.Close)
	return nil
}

// serve answers until ctx ends, and stops in the order that loses no outcome.
func (v *service) serve(ctx context.Context, addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: v.shop.handler(v.guard.Middleware(principal)), ReadHeaderTimeout: 5 * time.Second}
	v.log.Info("listening", "url", "http://"+l.Addr().String())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(ctx), v.guard.Drain(ctx))
}
