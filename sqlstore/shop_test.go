package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// The layers of docs/sql.md.
const (
	front    = "front"
	ownTable = "sqlstore"
	index    = "index"
	inTx     = "InTx"
)

// layers are the shop's ways to sell once: all that differs between the columns
// of docs/sql.md.
var layers = map[string]func(*shop, context.Context, order) (string, error){
	front: func(s *shop, ctx context.Context, o order) (string, error) {
		return s.guarded(ctx, redisstore.New(s.keys), o)
	},
	ownTable: func(s *shop, ctx context.Context, o order) (string, error) {
		return s.guarded(ctx, sqlstore.New(s.claims, dialects[s.Orders.Kind]), o)
	},
	index: (*shop).unlessSold,
	inTx:  (*shop).inTransaction,
}

// site is where a shop finds what it needs, also as a process of its own.
type site struct {
	Layer    string
	Orders   sqltest.Database // of the sales, and of InTx
	Claims   sqltest.Database // of sqlstore: another one, as it may be
	Redis    string           // address of the front
	Payments string           // URL of the payment provider
}

// shop sells through one layer. Each order has a guard of its own, as if it came
// to a process of its own.
type shop struct {
	site
	orders, claims *sql.DB
	keys           *redis.Client
}

// A moment of a sale.
type moment string

const (
	paid      moment = "paid"      // elsewhere, and nothing is written here
	written   moment = "written"   // the sale, and is not committed
	committed moment = "committed" // the sale, and with InTx the outcome
)

// order is what a client sends, and what happens meanwhile.
type order struct {
	Key, Item string
	Die       moment // the process is killed then

	at    map[moment]func()
	opts  []idempotent.Option // of its guard
	blind bool                // the winner's row is not compared with the request
}

func (o order) reach(m moment) {
	if o.Die == m {
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {}
	}
	if f := o.at[m]; f != nil {
		f()
	}
}

func (o order) options() []idempotent.Option {
	return append([]idempotent.Option{quiet, idempotent.WithStoreTimeout(20 * time.Second)}, o.opts...)
}

// buy returns the number of the sale.
func (s *shop) buy(ctx context.Context, o order) (string, error) { return layers[s.Layer](s, ctx, o) }

func (s *shop) guarded(ctx context.Context, store idempotent.Store, o order) (string, error) {
	return idempotent.Do(ctx, idempotent.New(store, o.options()...), o.Key, func(ctx context.Context) (string, error) {
		return s.sell(ctx, o)
	}, idempotent.WithCallFingerprint(o.Item))
}

func (s *shop) unlessSold(ctx context.Context, o order) (string, error) {
	id, err := s.sell(ctx, o)
	if !sqlstore.IsDuplicate(err, "sales_once", "sales.principal, sales.idempotency_key") {
		return id, err
	}
	return sqlstore.Existing(ctx, func(ctx context.Context) (id string, _ sqlstore.State, err error) {
		var item string
		err = s.orders.QueryRowContext(ctx, "SELECT id, item FROM sales WHERE principal = 'ada' AND idempotency_key = '"+o.Key+"'").Scan(&id, &item)
		if err == nil && item != o.Item && !o.blind {
			err = idempotent.ErrKeyReused
		}
		return id, sqlstore.StateFinished, err
	})
}

func (s *shop) inTransaction(ctx context.Context, o order) (string, error) {
	observer := idempotent.ObserverFunc(func(_ context.Context, e idempotent.Event) {
		if e.Kind == idempotent.EventCompleted {
			o.reach(committed)
		}
	})
	guard := sqlstore.NewTxGuard(sqlstore.New(s.orders, dialects[s.Orders.Kind]),
		sqlstore.WithGuard(append(o.options(), idempotent.WithObserver(observer))...))
	return sqlstore.InTx(ctx, guard, o.Key, func(ctx context.Context, tx *sql.Tx) (string, error) {
		if err := s.pay(ctx, o); err != nil {
			return "", err
		}
		return s.enter(ctx, tx, o)
	}, idempotent.WithCallFingerprint(o.Item))
}

// sell takes the payment and enters the sale in a transaction of its own.
func (s *shop) sell(ctx context.Context, o order) (string, error) {
	if err := s.pay(ctx, o); err != nil {
		return "", err
	}
	tx, err := s.orders.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	id, err := s.enter(ctx, tx, o)
	if err != nil {
		return "", err
	}
	if err := tx.Commit(); err != nil {
		return "", err
	}
	o.reach(committed)
	return id, nil
}

// pay has the payment made elsewhere: each time that the operation runs.
func (s *shop) pay(ctx context.Context, o order) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Payments, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	o.reach(paid)
	return resp.Body.Close()
}

// enter writes the row.
func (s *shop) enter(ctx context.Context, tx *sql.Tx, o order) (string, error) {
	id := rand.Text()
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO sales (id, principal, idempotency_key, item) VALUES ('%s', 'ada', '%s', '%s')", id, o.Key, o.Item))
	if err == nil {
		o.reach(written)
	}
	return id, err
}

// migrate makes the tables of a database of orders. Only the index's has one.
func (s *shop) migrate(ctx context.Context) error {
	_, err := s.orders.ExecContext(ctx, "CREATE TABLE sales (id VARCHAR(64), principal VARCHAR(64), idempotency_key VARCHAR(64), item VARCHAR(64))")
	if err == nil && s.Layer == index {
		_, err = s.orders.ExecContext(ctx, "CREATE UNIQUE INDEX sales_once ON sales (principal, idempotency_key)")
	}
	if err == nil && s.Layer == inTx {
		err = sqlstore.New(s.orders, dialects[s.Orders.Kind]).Migrate(ctx, s.orders)
	}
	return err
}

// sale is the environment variable that makes this test binary a shop that takes
// one order.
const sale = "SQLSTORE_SALE"

// sellOnce is the main function of that process.
func sellOnce() int {
	var in struct {
		site
		order
	}
	err := json.Unmarshal([]byte(os.Getenv(sale)), &in)
	s := &shop{site: in.site, keys: redis.NewClient(&redis.Options{Addr: in.Redis})}
	if err == nil {
		s.orders, err = sql.Open(s.Orders.Driver, s.Orders.DSN)
	}
	if err == nil && s.Layer == ownTable {
		s.claims, err = sql.Open(s.Claims.Driver, s.Claims.DSN)
	}
	if err == nil {
		_, err = s.buy(context.Background(), in.order)
	}
	fmt.Println("it was not killed:", err)
	return 1
}

// killed has another process take the order, which is killed at its moment. The
// error tells what else has happened.
func (s *shop) killed(o order) error {
	in, err := json.Marshal(struct {
		site
		order
	}{s.site, o})
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), sale+"="+string(in))
	redistest.EndWithParent(cmd)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.Exited() {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
