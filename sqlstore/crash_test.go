package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/sqlstore"
	"github.com/idempotent-go/idempotent/sqlstore/internal/sqltest"
)

// The till is a shop's payment route as a process that can be killed: this test
// binary, started again. It listens on a socket that it inherits: customers
// reach the till that lives, and while none does they wait in its queue.
const (
	tillDSN   = "SQLSTORE_TILL_DSN"
	tillKind  = "SQLSTORE_TILL_KIND"
	tillPlant = "SQLSTORE_TILL_PLANT" // a planted fault
)

// The planted faults, each of which makes operations happen twice.
const (
	plantBare    = "bare"    // no middleware at all
	plantOutside = "outside" // the ledger is written beside the transaction
)

// declined: of so many payments one is not made.
const declined = 5

// till is the main function of the process. It serves until it is killed.
func till() int {
	kind := sqltest.Kind(os.Getenv(tillKind))
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	driver := map[sqltest.Kind]string{sqltest.Postgres: "pgx", sqltest.MySQL: "mysql", sqltest.SQLite: "sqlite"}[kind]
	db, err := sql.Open(driver, os.Getenv(tillDSN))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	guard := sqlstore.NewTxGuard(sqlstore.New(db, dialects[kind]), patient()...)
	plant := os.Getenv(tillPlant)
	payments := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { takePayment(w, r, ledgerOf(kind, db), plant) })
	handler := guard.Middleware(idempotent.Anonymous)(payments)
	if plant == plantBare {
		handler = payments
	}
	fmt.Fprintln(os.Stderr, http.Serve(l, handler))
	return 1
}

// takePayment knows nothing of idempotency but that the ledger is to say under
// which key a payment was taken.
func takePayment(w http.ResponseWriter, r *http.Request, l ledger, plant string) {
	var in struct{ Number int }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, "not JSON", http.StatusBadRequest)
		return
	}
	on := execer(l.db)
	if plant == "" {
		tx, ok := sqlstore.Tx(r.Context())
		if !ok {
			panic("no transaction")
		}
		on = tx
	}
	id := rand.Text()
	busy()
	if err := l.add(r.Context(), on, r.Header.Get("Idempotency-Key"), id); err != nil {
		if !sqlstore.Again(r.Context(), err) {
			http.Error(w, `{"code":"failed"}`, http.StatusInternalServerError)
		}
		return
	}
	busy()
	w.Header().Set("Content-Type", "application/json")
	if in.Number%declined == 0 && plant == "" {
		w.WriteHeader(http.StatusPaymentRequired)
	} else {
		w.WriteHeader(http.StatusCreated)
	}
	fmt.Fprintf(w, `{"id":%q}`, id)
}

// busy takes some time, so that random moments fall everywhere.
func busy() { <-time.After(mathrand.N(6 * time.Millisecond)) }

// process runs tills, one at a time.
type process struct {
	url    string
	env    []string
	socket *os.File
	cmd    *exec.Cmd
}

// newProcess starts the first till. The last one ends with the test.
func newProcess(t *testing.T, d sqltest.Database, plant string) *process {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	socket, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	p := &process{
		url: "http://" + l.Addr().String(), socket: socket,
		env: []string{tillDSN + "=" + d.DSN, tillKind + "=" + string(d.Kind), tillPlant + "=" + plant},
	}
	p.start(t)
	t.Cleanup(func() {
		p.kill()
		_ = socket.Close()
	})
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stderr = os.Stderr
	p.cmd.ExtraFiles = []*os.File{p.socket}
	redistest.EndWithParent(p.cmd)
	require.NoError(t, p.cmd.Start())
}

// kill ends the till as kill -9 does, and returns when it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// reply is what a customer got for one attempt.
type reply struct {
	status int
	id     string // of the execution; "" where the answer tells nothing of it
}

func (r reply) told() bool { return r.id != "" }

// customers send payments and retry, each under one key, until they know what
// became of it.
type customers struct {
	t    *testing.T
	url  string
	http *http.Client
	stop chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	replies  map[string][]reply
	numbers  map[string]int
	underWay int
	told     int
	other    map[int]int // answers that told nothing, by status
}

func newCustomers(t *testing.T, url string, n int) *customers {
	c := &customers{
		t: t, url: url, stop: make(chan struct{}), replies: map[string][]reply{}, numbers: map[string]int{}, other: map[int]int{},
		http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: n}},
	}
	t.Cleanup(c.http.CloseIdleConnections)
	for i := range n {
		c.done.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-c.stop:
					return
				case <-t.Context().Done():
					return
				default:
				}
				c.pay(fmt.Sprintf("c%d-%d", i, j), j)
			}
		})
	}
	return c
}

// pay sends one payment until it is told what became of it.
func (c *customers) pay(key string, number int) {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		c.mu.Lock()
		c.underWay++
		c.mu.Unlock()
		got, err := c.send(ctx, key, number)
		c.mu.Lock()
		c.underWay--
		c.numbers[key] = number
		if err == nil {
			c.replies[key] = append(c.replies[key], got)
			if got.told() {
				c.told++
			} else {
				c.other[got.status]++
			}
		}
		c.mu.Unlock()
		if err == nil && got.told() {
			return
		}
		<-time.After(5*time.Millisecond + mathrand.N(20*time.Millisecond))
	}
}

func (c *customers) send(ctx context.Context, key string, number int) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/payments", strings.NewReader(fmt.Sprintf(`{"number":%d}`, number)))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := c.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	var in struct{ ID string }
	_ = json.Unmarshal(text, &in)
	return reply{resp.StatusCode, in.ID}, nil
}

func (c *customers) count() (told, underWay int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told, c.underWay
}

// close lets the customers end what they have begun, and asks for each payment
// once more, as one does whose answer was lost.
func (c *customers) close() {
	close(c.stop)
	c.done.Wait()
	for key, number := range c.numbers {
		c.pay(key, number)
	}
}

// judge compares the ledger with all the answers: a row where success was told,
// none where it was not, and the same answer to everybody.
func judge(ledger map[string][]string, replies map[string][]reply) (violations []string) {
	for key, ids := range ledger {
		if len(ids) > 1 {
			violations = append(violations, fmt.Sprintf("%s happened %d times", key, len(ids)))
		}
	}
	for key, got := range replies {
		ids := ledger[key]
		var first reply
		for _, r := range got {
			switch {
			case !r.told():
				if r.status != http.StatusConflict && r.status != http.StatusServiceUnavailable && r.status != http.StatusInternalServerError {
					violations = append(violations, fmt.Sprintf("%s was answered %d", key, r.status))
				}
				continue
			case first.told() && first != r:
				violations = append(violations, fmt.Sprintf("%s was answered %v and %v", key, first, r))
			case r.status == http.StatusCreated && !slices.Contains(ids, r.id):
				violations = append(violations, fmt.Sprintf("%s was answered %v, and the ledger has %v", key, r, ids))
			case r.status == http.StatusPaymentRequired && len(ids) > 0:
				violations = append(violations, fmt.Sprintf("%s was declined, and the ledger has %v", key, ids))
			}
			first = r
		}
		if !first.told() {
			violations = append(violations, key+" has no end: nobody knows what became of it")
		}
	}
	return violations
}

// The process is killed at random moments. Each payment is in the ledger once
// or not at all, as the customer is told; and everyone is told.
func TestInTx_Crash(t *testing.T) {
	t.Parallel()
	kills := 12
	if os.Getenv("IDEMPOTENT_LONG") == "1" {
		kills = 200
	}
	onEach(t, func(t *testing.T, d sqltest.Database) {
		w := newTxWorld(t, d)
		p := newProcess(t, d, "")
		c := newCustomers(t, p.url, 8)
		interrupted := 0
		for range kills {
			before, _ := c.count()
			eventually(t, "payments are answered", func() bool {
				told, _ := c.count()
				return told > before
			})
			<-time.After(mathrand.N(50 * time.Millisecond))
			_, underWay := c.count()
			interrupted += underWay
			p.kill()
			p.start(t)
		}
		c.close()
		require.NotZero(t, interrupted)
		ledger := w.ledger.all(t)
		require.Empty(t, judge(ledger, c.replies))
		for key := range ledger {
			require.Contains(t, c.replies, key)
		}
		t.Logf("%d kills with %d requests under way, %d payments, %d in the ledger, answers that told nothing: %v",
			kills, interrupted, len(c.replies), len(ledger), c.other)
		require.NotZero(t, len(ledger))
		require.Less(t, len(ledger), len(c.replies), "some are declined")
	})
}

// What the crash test looks for it finds.
func TestInTx_Crash_Planted(t *testing.T) {
	t.Parallel()
	for _, plant := range []string{plantBare, plantOutside} {
		t.Run(plant, func(t *testing.T) {
			t.Parallel()
			d := sqltest.New(t, sqltest.Postgres)
			w := newTxWorld(t, d)
			p := newProcess(t, d, plant)
			c := newCustomers(t, p.url, 8)
			eventually(t, "a payment happens twice", func() bool {
				<-time.After(mathrand.N(50 * time.Millisecond))
				p.kill()
				p.start(t)
				before, _ := c.count()
				eventually(t, "payments are answered", func() bool {
					told, _ := c.count()
					return told > before
				})
				for _, ids := range w.ledger.all(t) {
					if len(ids) > 1 {
						return true
					}
				}
				return false
			})
			c.close()
			require.NotEmpty(t, judge(w.ledger.all(t), c.replies))
		})
	}
}
