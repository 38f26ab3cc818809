// Package pglisten receives PostgreSQL's notifications for a sqlstore.Store, over
// one connection of pgx.
package pglisten

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotent-go/idempotent/sqlstore"
)

// silence is how long nothing may be heard before the connection is tried: one
// whose other end has vanished without a word would be waited on for ever.
const silence = 10 * time.Second

// patience is how long the server may take to answer.
const patience = 5 * time.Second

// Func returns a function for [sqlstore.WithListen] that connects to where url
// leads: a URL or a keyword and value string, as pgx takes them. It must lead to
// the database of the Store, and not through a pooler that hands out another
// connection for each transaction. An error in url shows at each connection, and
// waiters then poll; [pgx.ParseConfig] tells beforehand.
func Func(url string) sqlstore.ListenFunc {
	return func(ctx context.Context, channel string, ready func(), notify func(payload string)) error {
		dialing, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		conn, err := pgx.Connect(dialing, url)
		if err != nil {
			return err
		}
		defer func() { _ = end(conn) }()
		if _, err := conn.Exec(dialing, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return err
		}
		ready()
		for {
			payload, err := next(ctx, conn)
			switch {
			case err == nil:
				notify(payload)
			case ctx.Err() != nil:
				return ctx.Err()
			case conn.IsClosed():
				return err
			default: // nothing was heard
				if err := ping(ctx, conn); err != nil {
					return err
				}
			}
		}
	}
}

// next waits for a notification, and not for ever.
func next(ctx context.Context, conn *pgx.Conn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		return "", err
	}
	return n.Payload, nil
}

func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return conn.Ping(ctx)
}

// end closes the connection, also when the context of the listening has ended.
func end(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return conn.Close(ctx)
}
