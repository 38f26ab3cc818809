package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// seen is what became of one operation that was asked for more than once.
type seen struct {
	ran  int    // how often it ran, and with it the payment elsewhere; 0: the cell says nothing of it
	rows int    // in the shop's table in the end
	told string // what those who asked again were told, one after the other; see told
}

// cells says what the words of docs/sql.md's table mean.
var cells = map[string]seen{
	"the recorded answer":                  {1, 1, "same"},
	"not concerned":                        {1, 1, "same"},
	"cannot happen":                        {1, 1, "same"},
	"one runs, 409 for the other":          {1, 1, "409"},
	"one row; the answer is built from it": {2, 1, "same"},
	"one row; the other one reads it":      {2, 1, "same"},
	"one row":                              {0, 1, "same"},
	"422":                                  {1, 1, "422"},
	"answers with a row that is lost":      {1, 0, "same"},
	"outcome unknown":                      {1, 0, "unknown"},
	"outcome unknown until settled":        {1, 1, "unknown, same"},
	"**runs again**":                       {2, 2, "own"},
	"runs twice":                           {2, 2, "own"},
	"two rows":                             {2, 2, "own"},
	"both may run":                         {2, 2, "same"},
	"nothing is there; a repeat runs":      {2, 1, "own"},
	"knows nothing of it: **runs again**":  {2, 1, "own"},
	"only where you compare the row with the request":           {3, 1, "422, same"},
	"one runs, the other one waits or gets 409 (SQLite: 503)":   {1, 1, "409, same"},
	"nothing is there; a repeat that runs makes the row":        {2, 1, "own"},
	"the row is lost; a repeat makes it again":                  {2, 1, "own"},
	"runs again, and so it should: the row went with the claim": {2, 1, "own"},
	"outcome unknown: [reconcile](#when-nobody-knows)":          {1, 0, "unknown, same"},
}

// onSQLite are those of them that mean something else there.
var onSQLite = map[string]seen{
	"one runs, the other one waits or gets 409 (SQLite: 503)": {1, 1, "503, same"},
}

// tea is the order of all of them.
var tea = order{Key: "key", Item: "tea"}

// faults are the rows of the table: each plays what happens, and returns what
// those who asked again were told.
var faults = map[string]func(w *world) (told []string){
	"a client repeats its request": func(w *world) []string {
		return []string{w.again(w.buys(tea), tea)}
	},
	"two requests at once": func(w *world) (all []string) {
		first, release := w.hold(&w.shop, tea, written)
		if w.Layer != index {
			all = append(all, w.hasty())
		}
		if w.Layer == index || w.Layer == inTx { // they wait for the transaction
			second := w.start(&w.shop, tea)
			release()
			return append(all, told(<-second, w.sold(<-first)))
		}
		release()
		w.sold(<-first)
		return all
	},
	"the same key for another request": func(w *world) []string {
		first := w.buys(tea)
		coffee := order{Key: tea.Key, Item: "coffee"}
		all := []string{w.again(first, coffee)}
		if w.Layer == index {
			coffee.blind = true
			all = append(all, w.again(first, coffee))
		}
		return all
	},
	// To a layer all three look the same: the key is not there.
	"Redis is flushed, evicts, or fails over to an older replica": func(w *world) []string {
		first := w.buys(tea)
		w.emptyKeys()
		return []string{w.again(first, tea)}
	},
	"the database fails over to a replica without the last commits": func(w *world) []string {
		first := w.buys(tea)
		if w.Layer == ownTable {
			w.empty(w.claims, sqlstore.DefaultTable)
		} else {
			w.emptyOrders()
		}
		return []string{w.again(first, tea)}
	},
	"the process dies before the business row is committed": func(w *world) []string {
		w.dies(written)
		return []string{w.again("", tea)}
	},
	"the process dies after it, before the outcome is recorded": func(w *world) []string {
		w.dies(committed)
		return w.settled(w.sales()[0])
	},
	"with take-over: a claim's owner is cut off, and another one runs": func(w *world) []string {
		o := tea
		o.opts = []idempotent.Option{idempotent.WithTakeOver()}
		away, cut := w.shop, w.lapse
		if w.Layer == inTx && w.Orders.Kind != sqltest.SQLite {
			relay := redistest.NewRelay(w, w.Orders.Addr)
			away.orders = w.Orders.At(w, relay.Addr).Open(w)
			cut = func() { relay.Cut(); relay.Mend() }
		}
		late, release := w.hold(&away, o, paid)
		cut()
		other := w.start(&w.shop, o)
		if w.Layer == inTx && w.Orders.Kind == sqltest.SQLite { // nobody is cut off from a file: the other one waits
			release()
		}
		winner := w.sold(<-other)
		release()
		<-late // whatever it is told, it asks again
		return []string{w.again(winner, o)}
	},
	"a payment, mail or call to somebody else was made, and no record written": func(w *world) []string {
		w.dies(paid)
		return w.settled("what the provider says")
	},
	"two keys for one operation": func(w *world) []string {
		return []string{w.again(w.buys(tea), order{Key: "another", Item: tea.Item})}
	},
}

// Every cell of the table in docs/sql.md, on every kind of database: what it says
// is what happens.
func TestLayers(t *testing.T) {
	t.Parallel()
	table := layersTable(t)
	require.ElementsMatch(t, slices.Collect(maps.Keys(faults)), slices.Collect(maps.Keys(table)), "a fault for each row of docs/sql.md, and a row for each fault")
	for fault, row := range table {
		require.ElementsMatch(t, slices.Collect(maps.Keys(layers)), slices.Collect(maps.Keys(row)), "a layer for each column, and a column for each layer: %s", fault)
	}
	for _, kind := range sqltest.Kinds {
		for layer := range layers {
			t.Run(string(kind)+"/"+layer, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, kind, layer)
				for fault, row := range table {
					t.Run(fault, func(t *testing.T) {
						cell := row[layer]
						want, ok := cells[cell]
						require.True(t, ok, "docs/sql.md says %q, and nobody says here what that means", cell)
						if other, ok := onSQLite[cell]; ok && kind == sqltest.SQLite {
							want = other
						}
						got := w.play(t, faults[fault])
						if want.ran == 0 {
							want.ran = got.ran
						}
						require.Equal(t, want, got, "docs/sql.md says %q", cell)
					})
				}
			})
		}
	}
}

// Words that no cell uses any more go.
func TestLayers_Words(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, row := range layersTable(t) {
		for _, cell := range row {
			used[cell] = true
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(used)), slices.Collect(maps.Keys(cells)))
	require.Subset(t, slices.Collect(maps.Keys(cells)), slices.Collect(maps.Keys(onSQLite)))
}

// layersTable returns the table of docs/sql.md, by row and column.
func layersTable(t *testing.T) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docs/sql.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Which layer stops what\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.Lines(section) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "|") {
			row := strings.Split(strings.Trim(line, "|"), "|")
			for i := range row {
				row[i] = strings.TrimSpace(row[i])
			}
			rows = append(rows, row)
		}
	}
	require.Greater(t, len(rows), 2)
	table := map[string]map[string]string{}
	for _, row := range rows[2:] {
		require.Len(t, row, len(rows[0]), "%v", row)
		require.NotContains(t, table, row[0], "a row is there twice")
		table[row[0]] = map[string]string{}
		for i, cell := range row[1:] {
			table[row[0]][rows[0][i+1]] = cell
		}
	}
	return table
}

// world is a shop with all that is around it. One fault is played in it at a time.
type world struct {
	*testing.T // of the fault
	shop
	advance  func(time.Duration) // the front's clock, which is a miniredis's
	payments atomic.Int64
}

func newWorld(t *testing.T, kind sqltest.Kind, layer string) *world {
	t.Helper()
	w := &world{shop: shop{site: site{Layer: layer, Orders: sqltest.New(t, kind)}}}
	w.orders = w.Orders.Open(t)
	require.NoError(t, w.migrate(t.Context()))
	if layer == ownTable {
		w.Claims = sqltest.New(t, kind)
		w.claims = w.Claims.Open(t)
		newStore(t, w.claims, kind)
	}
	w.Redis, w.advance = redistest.Mini(t)
	w.keys = redis.NewClient(&redis.Options{Addr: w.Redis})
	t.Cleanup(func() { _ = w.keys.Close() })
	provider := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { w.payments.Add(1) }))
	t.Cleanup(provider.Close)
	w.Payments = provider.URL
	return w
}

// play plays a fault where nothing has happened yet.
func (w *world) play(t *testing.T, fault func(*world) []string) seen {
	t.Helper()
	w.T = t
	w.emptyOrders()
	if w.Layer == ownTable {
		w.empty(w.claims, sqlstore.DefaultTable)
	}
	w.emptyKeys()
	w.payments.Store(0)
	all := strings.Join(fault(w), ", ")
	return seen{ran: int(w.payments.Load()), rows: len(w.sales()), told: all}
}

// emptyOrders leaves nothing in the database of the orders.
func (w *world) emptyOrders() {
	w.Helper()
	w.empty(w.orders, "sales")
	if w.Layer == inTx {
		w.empty(w.orders, sqlstore.DefaultTable)
	}
}

func (w *world) empty(db *sql.DB, table string) {
	w.Helper()
	_, err := db.Exec("DELETE FROM " + table)
	require.NoError(w, err)
}

func (w *world) emptyKeys() {
	w.Helper()
	require.NoError(w, w.keys.FlushAll(w.Context()).Err())
}

// sales are the numbers of the rows.
func (w *world) sales() (ids []string) {
	w.Helper()
	rows, err := w.orders.Query("SELECT id FROM sales")
	require.NoError(w, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		require.NoError(w, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(w, rows.Err())
	return ids
}

// answer is what a client gets.
type answer struct {
	id  string
	err error
}

func (w *world) start(s *shop, o order) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		id, err := s.buy(w.Context(), o)
		c <- answer{id, err}
	}()
	return c
}

// sold expects a success.
func (w *world) sold(a answer) string {
	w.Helper()
	require.NoError(w, a.err)
	return a.id
}

func (w *world) buys(o order) string {
	w.Helper()
	return w.sold(<-w.start(&w.shop, o))
}

// again returns what is told to somebody who asks after another one was told
// first.
func (w *world) again(first string, o order) string { return told(<-w.start(&w.shop, o), first) }

// told puts an answer in words: the other one's, one of its own, or a refusal.
func told(a answer, first string) string {
	var inFlight *idempotent.InFlightError
	var store *idempotent.StoreError
	switch {
	case a.err == nil && a.id == first:
		return "same"
	case a.err == nil:
		return "own"
	case errors.As(a.err, &inFlight):
		return "409"
	case errors.Is(a.err, idempotent.ErrKeyReused):
		return "422"
	case errors.Is(a.err, idempotent.ErrOutcomeUnknown):
		return "unknown"
	case errors.As(a.err, &store):
		return "503"
	}
	return a.err.Error()
}

// hold starts a sale that stays at a moment until it is released.
func (w *world) hold(s *shop, o order, m moment) (end <-chan answer, release func()) {
	w.Helper()
	reached, gate := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(reached) }) // an operation of InTx may run again
	release = sync.OnceFunc(func() { close(gate) })
	w.Cleanup(release)
	o.at = map[moment]func(){m: func() { arrive(); <-gate }}
	end = w.start(s, o)
	select {
	case <-reached:
	case a := <-end:
		require.Fail(w, "it does not get there", "%v", a)
	}
	return end, release
}

// hasty returns what is told to somebody who does not wait for long.
func (w *world) hasty() (answer string) {
	w.Helper()
	o := tea
	o.opts = []idempotent.Option{idempotent.WithStoreTimeout(time.Second)}
	eventually(w, "the key is in flight", func() bool { // a busy machine's database may take its time
		answer = w.again("", o)
		return answer != "503" || w.Orders.Kind == sqltest.SQLite
	})
	return answer
}

// dies has a process take the order that is killed at a moment, and waits as long
// as its claim stands.
func (w *world) dies(m moment) {
	w.Helper()
	o := tea
	o.Die = m
	require.NoError(w, w.killed(o))
	w.lapse()
}

// lapse lets the leases of all claims pass.
func (w *world) lapse() {
	w.Helper()
	switch w.Layer {
	case front:
		w.advance(time.Minute)
	case ownTable:
		endLeases(w, w.claims)
	}
}

// settled asks, settles what is unknown as a success with the answer, and asks
// again.
func (w *world) settled(answer string) []string {
	w.Helper()
	all := []string{w.again(answer, tea)}
	if all[0] != "unknown" {
		return all
	}
	var store idempotent.Store = redisstore.New(w.keys)
	if w.Layer == ownTable {
		store = sqlstore.New(w.claims, dialects[w.Claims.Kind])
	}
	e, _, err := store.Load(w.Context(), tea.Key)
	require.NoError(w, err)
	result, err := idempotent.EncodeValue(answer)
	require.NoError(w, err)
	require.NoError(w, idempotent.New(store, quiet).Resolve(context.Background(), tea.Key, e.Owner, idempotent.ClassSuccess, result))
	return append(all, w.again(answer, tea))
}
