package upgradetest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

const root = "../.."

// frozen are the recorded forms: record, response, store key and fingerprint.
var frozen = []string{
	"redisstore/testdata/record1.txt", "testdata/response.golden", "testdata/storekey.golden", "testdata/fingerprint.golden",
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// earlier returns the revision to upgrade from: the last release before the
// commit that is checked out, or, before there is one, the commit that was the
// first to record everything in its present form. Where there is no history the
// test is skipped: golden files then stand for the earlier releases alone.
func earlier(t *testing.T) string {
	t.Helper()
	if shallow, err := git("rev-parse", "--is-shallow-repository"); err != nil || shallow != "false" {
		t.Skipf("no history to build an earlier release from (%q, %v): clone all of it to run this test; "+
			"what earlier releases recorded is tested by golden files", shallow, err)
	}
	if tag, err := git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"); err == nil {
		return tag
	}
	revision, err := git(append([]string{"log", "-1", "--format=%H", "--"}, frozen...)...)
	require.NoError(t, err)
	require.NotEmpty(t, revision)
	return revision
}

// checkOut writes revision to a directory, with the program of now in it.
func checkOut(t *testing.T, revision string) string {
	t.Helper()
	archive, err := exec.Command("git", "-C", root, "archive", "--format=tar", revision).Output()
	require.NoError(t, err)
	dir := t.TempDir()
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if file.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(files)
		require.NoError(t, err)
		write(t, filepath.Join(dir, filepath.FromSlash(file.Name)), data)
	}
	source, err := os.ReadFile("prog/main.go")
	require.NoError(t, err)
	write(t, filepath.Join(dir, "internal/upgradetest/prog/main.go"), source)
	return dir
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(t, os.WriteFile(name, data, 0o600))
}

// build builds the program of the module in dir.
func build(t *testing.T, dir string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "prog")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./internal/upgradetest/prog")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// server is one running program.
type server struct {
	name, url string
	cmd       *exec.Cmd
}

func serve(t *testing.T, program, redisAddr, name string, lease time.Duration) *server {
	t.Helper()
	cmd := exec.Command(program, redisAddr, name, lease.String())
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe() // held open: the program ends with this test
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	s := &server{name: name, cmd: cmd}
	t.Cleanup(s.kill)
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	s.url = "http://" + strings.TrimSpace(addr) + "/orders"
	return s
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// answer is what a client can see of an answer.
type answer struct {
	status   int
	order    string // the headers of the handler
	body     string
	replayed bool
}

func (s *server) post(key string) (answer, error) {
	r, err := http.NewRequest(http.MethodPost, s.url, strings.NewReader(`{"article": 17, "amount": 1.10}`))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{
		status: resp.StatusCode, order: fmt.Sprint(resp.Header["Content-Type"], resp.Header["X-Order"]), body: string(body),
		replayed: resp.Header.Get("Idempotent-Replayed") != "",
	}, err
}

// settled asks until there is an answer that says more than to ask again: the
// order is in flight, or Redis was slow.
func (s *server) settled(key string) (answer, error) {
	for {
		a, err := s.post(key)
		if err != nil || !strings.Contains(a.body, `"retryable":true`) {
			return a, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Two releases serve the same keys at the same time: each order runs once,
// whoever is asked first, and both give the same answer, byte for byte. What one
// leaves behind when it dies the other does not run again.
func TestUpgrade(t *testing.T) {
	redistest.Require(t)
	revision := earlier(t)
	t.Logf("from %s", revision)
	addr := redistest.Start(t).Addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	programs := map[string]string{"old": build(t, checkOut(t, revision)), "new": build(t, root)}
	old, new := serve(t, programs["old"], addr, "old", time.Minute), serve(t, programs["new"], addr, "new", time.Minute)

	const keys, callers = 40, 2 // callers of each release for each key
	var all sync.WaitGroup
	for i := range keys {
		key := fmt.Sprintf("order-%d", i)
		first, second := old, new
		if i%2 == 1 {
			first, second = new, old
		}
		answers := make(chan answer, 2*callers)
		ask := func(s *server) {
			a, err := s.settled(key)
			if err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
			answers <- a
		}
		all.Go(func() {
			var asked sync.WaitGroup
			for range callers {
				asked.Go(func() { ask(first) })
				asked.Go(func() { ask(second) })
			}
			asked.Wait()
			close(answers)
			var want answer
			firsts := 0
			for a := range answers {
				if a.status != http.StatusCreated {
					t.Errorf("%s: %+v", key, a)
				}
				if !a.replayed {
					firsts++
				}
				a.replayed = false
				if want == (answer{}) {
					want = a
				}
				if a != want {
					t.Errorf("%s: %+v and %+v", key, a, want)
				}
			}
			if firsts != 1 {
				t.Errorf("%s: %d first answers", key, firsts)
			}
		})
	}
	all.Wait()
	ran := map[string]int{}
	for i := range keys {
		by := client.LRange(t.Context(), fmt.Sprintf("ledger:order-%d", i), 0, -1).Val()
		require.Len(t, by, 1)
		ran[by[0]]++
	}
	t.Logf("ran by %v", ran)
	require.NotZero(t, ran["old"], "a load that only one of them took")
	require.NotZero(t, ran["new"], "a load that only one of them took")

	for name, stays := range map[string]*server{"old": new, "new": old} {
		dies := serve(t, programs[name], addr, name, time.Second)
		key := "left-by-" + name
		go func() { _, _ = dies.post(key) }()
		redistest.Eventually(t, "the order has begun", func() bool { return client.LLen(t.Context(), "ledger:"+key).Val() > 0 })
		dies.kill()
		a, err := stays.settled(key)
		require.NoError(t, err)
		require.Equal(t, http.StatusConflict, a.status)
		require.Contains(t, a.body, "outcome-unknown")
		require.EqualValues(t, 1, client.LLen(t.Context(), "ledger:"+key).Val())
	}
}
