package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // driver

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/storeurl"
)

const storeURLs = `Stores, by -store or ` + storeVariable + ` (which keeps a password out of the list of processes):
  redis://user:password@host:6379/0    rediss:// over TLS; parameters as in package storeurl
  redis+cluster://host:6379,host:6379  rediss+cluster:// over TLS
  redis+sentinel://host,host/0?master_name=main
  postgres://user:password@host:5432/database?sslmode=verify-full
  mysql://user:password@host:3306/database?tls=true
  sqlite:/var/lib/shop/shop.db         an existing file
  moving:redis://old redis://new       both, for get, resolve, free and check during a move
  memory:                              a new, empty one: for bench alone
Redis takes prefix=…, and SQL table=…, where the program does not use the default.
What has a meaning in a URL, such as / ? # @ : and %, is percent-encoded in a password.
`

// openStore opens the store that a URL names, and returns what ends it. A store
// that does not answer is an error. A URL that cannot be read matches
// [idempotent.ErrInvalid]; no error text of this function holds a password.
func openStore(ctx context.Context, text string) (idempotent.Store, func() error, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch strings.ToLower(scheme) {
	case "postgres", "postgresql":
		return openSQL(ctx, sqlstore.PostgreSQL, text, openPostgres)
	case "mysql":
		return openSQL(ctx, sqlstore.MySQL, text, openMySQL)
	case "sqlite":
		return openSQL(ctx, sqlstore.SQLite, rest, openSQLite)
	}
	store, end, err := storeurl.Open(ctx, text)
	switch {
	case errors.Is(err, idempotent.ErrInvalid) && strings.EqualFold(scheme, "moving"):
		err = fmt.Errorf("%w (of other stores this command takes one at a time)", err)
	case errors.Is(err, idempotent.ErrInvalid):
		err = fmt.Errorf("%w (or it is postgres://, mysql:// or sqlite:)", err)
	}
	return store, end, err
}

func openSQL(ctx context.Context, d sqlstore.Dialect, text string, open func(string) (*sql.DB, error)) (idempotent.Store, func() error, error) {
	text, table, err := cutTable(text)
	if err != nil {
		return nil, nil, err
	}
	db, err := open(text)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxIdleConns(64) // bench would open new ones all the time
	store, err := newSQLStore(db, d, table)
	if err == nil {
		err = db.PingContext(ctx)
	}
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return store, func() error { return errors.Join(store.Close(), db.Close()) }, nil
}

// newSQLStore turns the panic over an impossible name of a table, which is a
// programming error elsewhere, into an error.
func newSQLStore(db *sql.DB, d sqlstore.Dialect, table string) (store *sqlstore.Store, err error) {
	defer func() {
		if why := recover(); why != nil {
			text, ok := why.(string)
			if !ok {
				panic(why)
			}
			err = fmt.Errorf("%w: %s", idempotent.ErrInvalid, text)
		}
	}()
	return sqlstore.New(db, d, sqlstore.WithTable(table)), nil
}

// cutTable takes the parameter table, which no driver knows, out of a URL.
func cutTable(text string) (rest, table string, err error) {
	table = sqlstore.DefaultTable
	rest, query, _ := strings.Cut(text, "?")
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		value, ok := strings.CutPrefix(pair, "table=")
		switch {
		case !ok && pair != "":
			kept = append(kept, pair)
		case ok:
			if table, err = url.QueryUnescape(value); err != nil {
				return "", "", unreadable("table")
			}
		}
	}
	if len(kept) > 0 {
		rest += "?" + strings.Join(kept, "&")
	}
	return rest, table, nil
}

// unreadable is the error of a URL. The drivers' own quote parts of it, which
// may be a password that was not encoded.
func unreadable(what string) error {
	return fmt.Errorf("%w: the %s cannot be read; see idempotent help for its form, and percent-encode / ? # @ : %% in a password", idempotent.ErrInvalid, what)
}

func openPostgres(text string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, unreadable("postgres:// URL")
	}
	return stdlib.OpenDB(*config), nil
}

func openMySQL(text string) (*sql.DB, error) {
	config, err := mysqlConfig(text)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, unreadable("mysql:// URL")
	}
	return sql.OpenDB(connector), nil
}

// mysqlConfig reads a URL, which the driver has no form of.
func mysqlConfig(text string) (*mysql.Config, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return nil, unreadable("mysql:// URL")
	}
	// The driver reads the parameters of its own form.
	config, err := mysql.ParseDSN("/?" + u.RawQuery)
	if err != nil {
		return nil, unreadable("query of the mysql:// URL")
	}
	port := u.Port()
	if port == "" {
		port = "3306"
	}
	config.Net, config.Addr = "tcp", net.JoinHostPort(u.Hostname(), port)
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.DBName = strings.TrimPrefix(u.Path, "/")
	if config.DBName == "" {
		return nil, fmt.Errorf("%w: the mysql:// URL names no database: mysql://host/database", idempotent.ErrInvalid)
	}
	return config, nil
}

// openSQLite opens a file that exists: SQLite would make an empty one of a
// misspelt name.
func openSQLite(text string) (*sql.DB, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(text, "//"), "?")
	if path == "" {
		return nil, fmt.Errorf("%w: sqlite: is followed by the path of a file", idempotent.ErrInvalid)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	dsn := "file:" + strings.NewReplacer("%", "%25", "#", "%23").Replace(path) + "?_pragma=busy_timeout(5000)&_txlock=immediate"
	if query != "" {
		dsn += "&" + query
	}
	return sql.Open("sqlite", dsn)
}

// redact replaces every password of a store URL in a text, in case a driver or
// a server has quoted it.
func redact(store, text string) string {
	for _, secret := range passwords(store) {
		text = strings.ReplaceAll(text, secret, "…")
	}
	return text
}

// passwords returns what may be a password in a URL, as written and as meant.
// It reads the URL more generously than any opener, so that one that cannot be
// read gives nothing away either.
func passwords(store string) []string {
	var found []string
	if urls := strings.Fields(store); len(urls) > 1 { // of a move
		for _, one := range urls {
			found = append(found, passwords(one)...)
		}
	}
	add := func(raw string, unescape func(string) (string, error)) {
		if raw == "" {
			return
		}
		found = append(found, raw)
		if meant, err := unescape(raw); err == nil && meant != raw {
			found = append(found, meant)
		}
	}
	_, rest, _ := strings.Cut(store, "://")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		_, password, _ := strings.Cut(rest[:i], ":")
		add(password, url.PathUnescape)
	}
	_, query, _ := strings.Cut(rest, "?")
	for pair := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(pair, "="); strings.Contains(strings.ToLower(name), "password") {
			add(value, url.QueryUnescape)
		}
	}
	return found
}
