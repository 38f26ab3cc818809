//go:build unix

package faultbench

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/redisstore"
)

// The till is the shop's payment route as a process that can be killed: this
// test binary, started again. It is not the shop itself, because the ledger
// must outlive the process and be on disk before the answer is given, because
// the shop forgets its orders when it dies, and because its lease of half a
// minute would make every check wait that long. TestCrash_Shop runs the shop.
//
// It listens on a socket that it inherits: customers reach the till that lives,
// and while none does they wait in the queue of the socket.
const (
	tillStore    = "FAULTBENCH_STORE"    // address of a server, or of Sentinels with commas between
	tillLedger   = "FAULTBENCH_LEDGER"   // file
	tillReplicas = "FAULTBENCH_REPLICAS" // "1": claims wait for a replica
	tillPlant    = "FAULTBENCH_PLANT"    // a planted fault
)

// The planted faults, each of which makes operations run twice.
const (
	plantBare      = "bare"      // no middleware at all
	plantForgetful = "forgetful" // a guard whose store gives every key to everybody
)

const (
	lease        = 2 * time.Second
	storeTimeout = time.Second
	route        = "/payments"
)

// till is the main function of the process. It serves until it is killed.
func till() int {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	file, err := os.OpenFile(os.Getenv(tillLedger), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var client *redis.Client
	if at := strings.Split(os.Getenv(tillStore), ","); len(at) == 1 {
		client = redis.NewClient(&redis.Options{Addr: at[0], DisableIdentity: true})
	} else {
		client = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: GroupName, SentinelAddrs: at, DisableIdentity: true})
	}
	var opts []redisstore.Option
	if os.Getenv(tillReplicas) == "1" {
		opts = append(opts, redisstore.WithReplicas(1, 200*time.Millisecond))
	}
	var store idempotent.Store = redisstore.New(client, opts...)
	plant := os.Getenv(tillPlant)
	if plant == plantForgetful {
		store = forgetful{store}
	}
	guard := idempotent.New(store, idempotent.WithLease(lease), idempotent.WithStoreTimeout(storeTimeout),
		idempotent.WithLogger(slog.New(slog.DiscardHandler)))
	handler := guard.Middleware(principal)(payments{file})
	if plant == plantBare {
		handler = payments{file}
	}
	fmt.Fprintln(os.Stderr, http.Serve(l, handler))
	return 1
}

func principal(*http.Request) (string, error) { return "till", nil }

// payments takes payments. It knows nothing of idempotency but that the ledger
// is to say under which key a payment was taken.
type payments struct{ ledger *os.File }

func (p payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		AmountCents int `json:"amount_cents"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, "not JSON", http.StatusBadRequest)
		return
	}
	status := http.StatusCreated
	if in.AmountCents%declined == 0 {
		status = http.StatusPaymentRequired
	}
	x := execution{key: r.Header.Get("Idempotency-Key"), id: rand.Text(), status: status}
	busy()
	if err := x.append(p.ledger); err != nil {
		panic(err)
	}
	busy()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"id":%q}`, x.id)
}

// declined: of so many amounts one is not paid.
const declined = 10

// busy takes some time, so that random moments fall everywhere.
func busy() { <-time.After(mathrand.N(6 * time.Millisecond)) }

// forgetful gives every key to everybody.
type forgetful struct{ idempotent.Store }

func (s forgetful) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, _, err := s.Store.Claim(ctx, key, c)
	e.Owner, e.Status = c.Owner, idempotent.Pending
	return e, err == nil, err
}

// process runs tills, one at a time.
type process struct {
	url     string
	ledger  string
	env     []string
	socket  *os.File
	cmd     *exec.Cmd
	started time.Time
}

// newProcess starts the first till. The last one ends with the test.
func newProcess(t *testing.T, store string, env ...string) *process {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	socket, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	file, err := os.Create(t.TempDir() + "/ledger")
	require.NoError(t, err)
	require.NoError(t, file.Close())
	p := &process{
		url: "http://" + l.Addr().String(), ledger: file.Name(), socket: socket,
		env: append(env, tillStore+"="+store, tillLedger+"="+file.Name()),
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
	p.started = time.Now()
	require.NoError(t, p.cmd.Start())
}

// kill ends the till as kill -9 does, and returns when it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
