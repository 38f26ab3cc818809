package main

import (
	"context"
	"strconv"
	"strings"
)

// dialect is what differs between the databases.
type dialect struct {
	driver string
	schema string
	once   string // how the index of the idempotency key is named in an error
	coupon string // and that of the coupon
	dollar bool   // placeholders are $1, not ?
}

// The composite index is the last line of defence: one order for each key of each
// customer. The key's column compares bytes in each of them; MySQL would
// otherwise take "a" and "A" for one.
var (
	postgres = dialect{
		driver: "pgx",
		schema: `
CREATE TABLE IF NOT EXISTS shop_sql_orders (
  id TEXT PRIMARY KEY, principal TEXT NOT NULL, idempotency_key TEXT NOT NULL,
  item TEXT NOT NULL, quantity INTEGER NOT NULL, coupon TEXT, state TEXT NOT NULL,
  CONSTRAINT shop_sql_orders_once UNIQUE (principal, idempotency_key),
  CONSTRAINT shop_sql_orders_coupon UNIQUE (coupon)
)`,
		once: "shop_sql_orders_once", coupon: "shop_sql_orders_coupon", dollar: true,
	}
	mysql = dialect{
		driver: "mysql",
		schema: `
CREATE TABLE IF NOT EXISTS shop_sql_orders (
  id VARCHAR(64) PRIMARY KEY,
  principal VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  idempotency_key VARCHAR(512) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  item VARCHAR(255) NOT NULL, quantity INTEGER NOT NULL, coupon VARCHAR(64), state VARCHAR(16) NOT NULL,
  UNIQUE INDEX shop_sql_orders_once (principal, idempotency_key),
  UNIQUE INDEX shop_sql_orders_coupon (coupon)
) ENGINE = InnoDB`,
		once: "shop_sql_orders_once", coupon: "shop_sql_orders_coupon",
	}
	sqlite = dialect{
		driver: "sqlite",
		schema: `
CREATE TABLE IF NOT EXISTS shop_sql_orders (
  id TEXT PRIMARY KEY, principal TEXT NOT NULL, idempotency_key TEXT NOT NULL,
  item TEXT NOT NULL, quantity INTEGER NOT NULL, coupon TEXT, state TEXT NOT NULL,
  UNIQUE (principal, idempotency_key), UNIQUE (coupon)
)`,
		// SQLite names the columns.
		once: "shop_sql_orders.principal, shop_sql_orders.idempotency_key", coupon: "shop_sql_orders.coupon",
	}
)

// text writes a statement with the database's placeholders.
func (d *dialect) text(statement string) string {
	for n := 1; d.dollar && strings.Contains(statement, "?"); n++ {
		statement = strings.Replace(statement, "?", "$"+strconv.Itoa(n), 1)
	}
	return statement
}

func (s *shop) migrate(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, s.dialect.schema)
	return err
}
