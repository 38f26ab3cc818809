package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
)

// Finding is one thing about a server, or about the client that leads to it,
// because of which an operation may run twice, be refused for ever, or keep its
// waiters waiting. All four texts are for an operator to read and are never
// empty; none holds a key or a password.
type Finding struct {
	Setting string // what it is about, such as "maxmemory-policy" or "permission"
	Value   string // how it is; in a Cluster or a Ring with the addresses of the servers
	Breaks  string // what comes of it
	Fix     string // what to do about it
}

// The oldest release whose behaviour the scripts rely on.
const oldestMajor, oldestMinor = 6, 2

// trialLease is how long a trial's entry stays where the process dies within
// the trial. A trial that takes longer fails.
const trialLease = 10 * time.Second

// Check tells what would break the promise, so that a program can refuse to
// start. It looks at every server that can hold an entry:
//
//   - maxmemory-policy, where maxmemory is set: any but noeviction throws
//     claims away. Without a maxmemory nothing is evicted, whatever the policy.
//   - appendonly, appendfsync, no-appendfsync-on-rewrite: what a crash of the
//     server loses.
//   - its release: older ones than 6.2 are not supported.
//   - its role: a replica takes no claim, or loses it.
//   - replicas: fewer than min-replicas-to-write or [WithReplicas] ask for.
//   - permission: each command, key or channel that the user may not use. All
//     steps are tried under a throw-away key of the Store's own prefix, of which
//     nothing stays.
//   - client: a [redis.Ring] of several shards.
//
// Settings are read with INFO and CONFIG GET. What the user may not read, as a
// user with the least permissions and many a hosted server's users may not, is
// not judged: no finding then says that a setting is right. Whether a client
// reads from replicas is no finding, since every step goes to the primary. A
// full server is none either: it refuses new claims, as promised.
//
// Findings are sorted by setting and value; none is nil. The error says that
// Check did not come to an end: a server could not be reached, or answers
// something of which nothing is known. Check blocks until every server has
// answered or ctx ends, and with WithReplicas for up to its timeout a server.
// It sends some thirty commands to each, so it is for the start of a program,
// not for each health check: see [Store.Ping].
func (s *Store) Check(ctx context.Context) ([]Finding, error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	servers, err := call(ctx, false, func() ([]*server, error) { return s.servers(ctx) })
	if err != nil {
		return nil, wrap("check", s.discreet("", err))
	}
	r := report{several: len(servers) > 1}
	if ring, ok := s.client.(*redis.Ring); ok {
		// Not Len, which leaves out the shards that are down.
		if shards := len(ring.Options().Addrs); shards > 1 {
			r.add("", ringFinding(shards))
		}
	}
	for _, n := range servers {
		if err := n.check(ctx, &r); err != nil {
			return nil, wrap("check", s.discreet("", err))
		}
	}
	return r.findings(), nil
}

// server is one server that can hold entries, and the trial made on it.
type server struct {
	store  *Store // the one checked, but of this server alone and not asking for replicas
	client redis.UniversalClient
	addr   string
	user   string
	acks   int
	wait   time.Duration
	polls  bool   // nobody subscribes
	key    string // the throw-away key, which lies on this server
}

// trials is how many keys are drawn to find one on every server. A hundred
// servers with equal shares are found by less than a thousand with near
// certainty; where the prefix holds a hash tag, one server has all entries and
// the others do not matter.
const trials = 10_000

// servers returns each server on which an entry can lie, in the order of their
// addresses.
func (s *Store) servers(ctx context.Context) ([]*server, error) {
	want := 1
	switch c := s.client.(type) {
	case *redis.ClusterClient:
		var masters atomic.Int64 // the client calls in parallel
		if err := c.ForEachMaster(ctx, func(context.Context, *redis.Client) error {
			masters.Add(1)
			return nil
		}); err != nil {
			return nil, err
		}
		want = int(masters.Load())
	case *redis.Ring:
		want = c.Len()
	case *redis.Client:
	default:
		return []*server{s.server(s.client, nil, trialKey())}, nil
	}
	found := map[*redis.Client]*server{}
	for i := 0; i < trials && len(found) < want; i++ {
		key := trialKey()
		node, err := s.node(ctx, s.name(key))
		if err != nil {
			return nil, err
		}
		if found[node] == nil {
			found[node] = s.server(node, node, key)
		}
	}
	list := make([]*server, 0, len(found))
	for _, n := range found {
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b *server) int { return strings.Compare(a.addr, b.addr) })
	return list, nil
}

func trialKey() string { return "check:" + rand.Text() }

func (s *Store) server(client redis.UniversalClient, node *redis.Client, key string) *server {
	n := &server{
		store:  &Store{client: client, prefix: s.prefix, channel: s.channel},
		client: client, acks: s.acks, wait: s.ackTime, key: key, user: "default",
	}
	_, n.polls = s.client.(*redis.Ring)
	if node != nil {
		o := node.Options()
		n.addr, n.user = o.Addr, cmp.Or(o.Username, n.user)
	}
	return n
}

func (n *server) check(ctx context.Context, r *report) error {
	set, err := n.settings(ctx)
	if err != nil {
		return err
	}
	old := oldFinding(set)
	r.add(n.addr, old, evictionFinding(set), persistenceFinding(set))
	if set["role"] == "slave" {
		r.add(n.addr, roleFinding)
		return nil // what is tried there says nothing of the primary
	}
	refused, err := n.permissions(ctx)
	r.add(n.addr, refused...)
	if err != nil || len(refused) > 0 || old.Setting != "" {
		return err // the steps would fail, and say less
	}
	found, err := n.rehearse(ctx)
	r.add(n.addr, found)
	return err
}

// settings reads what the server says of itself, under the names of its
// configuration file where there is one. Answers of the server that say no are
// no errors.
func (n *server) settings(ctx context.Context) (map[string]string, error) {
	set := map[string]string{}
	info, err := call(ctx, false, func() (string, error) { return n.client.Info(ctx).Result() })
	if err != nil && !fromServer(err) {
		return nil, err
	}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			set[name] = value
		}
	}
	set["maxmemory-policy"] = set["maxmemory_policy"]
	set["appendonly"] = map[string]string{"0": "no", "1": "yes"}[set["aof_enabled"]]
	// One pattern a call: Redis takes several since 7.0 only.
	for _, pattern := range []string{"maxmemory*", "append*", "no-appendfsync-on-rewrite"} {
		config, err := call(ctx, false, func() (map[string]string, error) { return n.client.ConfigGet(ctx, pattern).Result() })
		if err != nil && !fromServer(err) {
			return nil, err
		}
		for name, value := range config {
			set[name] = value
		}
	}
	return set, nil
}

// how a setting is changed so that it stays.
const how = ", in redis.conf or by CONFIG SET and CONFIG REWRITE"

func evictionFinding(set map[string]string) Finding {
	policy := set["maxmemory-policy"]
	if policy == "" || policy == "noeviction" || set["maxmemory"] == "0" {
		return Finding{}
	}
	// The volatile policies are no better: every entry has an expiry.
	return Finding{
		Setting: "maxmemory-policy", Value: policy,
		Breaks: "at its maxmemory the server throws away claims of running operations and records of finished ones: they run again",
		Fix:    "set maxmemory-policy noeviction" + how + "; a full server then refuses new keys. Give a cache a server of its own",
	}
}

func persistenceFinding(set map[string]string) Finding {
	switch fsync := set["appendfsync"]; {
	case set["appendonly"] == "no":
		return Finding{
			Setting: "appendonly", Value: "no",
			Breaks: "a crash of the server loses every claim and record since its last snapshot, or all of them without one: those operations run again",
			Fix:    "set appendonly yes and appendfsync always" + how,
		}
	case set["appendonly"] != "yes":
		return Finding{}
	case fsync == "everysec":
		return Finding{
			Setting: "appendfsync", Value: fsync,
			Breaks: "a crash of the machine loses the claims and records of the last second or two: those operations run again",
			Fix:    "set appendfsync always" + how + "; it costs each step a write to disk",
		}
	case fsync == "no":
		return Finding{
			Setting: "appendfsync", Value: fsync,
			Breaks: "a crash of the machine loses the claims and records that the system had not written, half a minute's or more: those operations run again",
			Fix:    "set appendfsync always" + how + "; it costs each step a write to disk",
		}
	case fsync == "always" && set["no-appendfsync-on-rewrite"] == "yes":
		return Finding{
			Setting: "no-appendfsync-on-rewrite", Value: "yes",
			Breaks: "while the append-only file or a snapshot is written, appendfsync always is off: a crash of the machine then loses claims and records, and those operations run again",
			Fix:    "set no-appendfsync-on-rewrite no" + how,
		}
	}
	return Finding{}
}

func oldFinding(set map[string]string) Finding {
	version := set["redis_version"]
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	if err != nil || err2 != nil || major > oldestMajor || major == oldestMajor && minor >= oldestMinor {
		return Finding{}
	}
	return Finding{
		Setting: "version", Value: version,
		Breaks: "the scripts are written for the behaviour of later releases: steps can fail, or decide otherwise than promised",
		Fix:    fmt.Sprintf("use Redis %d.%d or later, or Valkey", oldestMajor, oldestMinor),
	}
}

var roleFinding = Finding{
	Setting: "role", Value: "replica",
	Breaks: "a replica refuses claims, or where it may be written loses them at its next synchronisation: operations are refused, or run again",
	Fix:    "connect to the primary: its address, or a client of Sentinel or Cluster that finds it",
}

func ringFinding(shards int) Finding {
	return Finding{
		Setting: "client", Value: fmt.Sprintf("redis.Ring of %d shards", shards),
		Breaks: "while a shard is away its keys go to another one, which knows nothing of them: operations run again",
		Fix:    "use a Cluster, or one server behind Sentinel",
	}
}

// permissionFinding names one permission as ACL SETUSER would grant it.
func (n *server) permissionFinding(rule, breaks string) Finding {
	return Finding{
		Setting: "permission", Value: rule + " is missing",
		Breaks: breaks,
		Fix:    "ACL SETUSER " + n.user + " " + rule,
	}
}

// deniedFinding reads from a server's words what is denied to command.
func (n *server) deniedFinding(command, text, breaks string) Finding {
	switch {
	case strings.Contains(text, " run "):
		return n.permissionFinding("+"+command, breaks)
	case strings.Contains(text, "channel"):
		return n.permissionFinding("&"+n.store.prefix+"*", breaks)
	}
	return n.permissionFinding("~"+n.store.prefix+"*", breaks)
}

func (n *server) unknownFinding(command, breaks string) Finding {
	return Finding{
		Setting: "permission", Value: command + " is unknown to the server",
		Breaks: breaks,
		Fix:    "take out the rename-command of " + command + ", or the proxy that does not pass it on",
	}
}

const (
	breaksSteps  = "steps fail: keyed operations are refused, or their outcomes are not recorded"
	breaksWaking = "the end of an operation is not told to those who wait for it: they poll, which is slower and costs more commands"
)

// The commands of the scripts. Those that could leave something come last, and
// HSET only where it can be undone.
//
//	KEYS[1]  name of a hash that nobody has
//	ARGV[1]  channel of the waiters
//
// Returns a line for each command that fails: its name, a space, the error.
var checkScript = redis.NewScript(`
local name, failed = KEYS[1], ''
local function try(command, ...)
  local r = redis.pcall(command, ...)
  if type(r) ~= 'table' or not r.err then return true end
  failed = failed .. command .. ' ' .. string.gsub(r.err, '[\r\n]', ' ') .. '\n'
  return false
end
try('hmget', name, 'status')
try('hget', name, 'status')
try('exists', name)
try('hdel', name, 'wait')
try('time')
local past = try('pexpireat', name, '1')
if try('del', name) or past then
  try('hset', name, 'wait', '0')
  redis.pcall('DEL', name)
  redis.pcall('PEXPIREAT', name, '1')
end
try('publish', ARGV[1], '')
return failed
`)

// permissions tries each command, so that what is missing can be named: inside
// a script Redis up to 7.0 does not say which command it refuses.
func (n *server) permissions(ctx context.Context) ([]Finding, error) {
	var list []Finding
	// direct sends one command and reports whether the user may run it. That it
	// fails otherwise does not matter here.
	direct := func(command, breaks string, args ...any) (bool, error) {
		_, err := call(ctx, false, func() (any, error) { return n.client.Do(ctx, append([]any{command}, args...)...).Result() })
		switch {
		case err != nil && !fromServer(err):
			return false, err
		case err != nil && refused(err):
			list = append(list, n.deniedFinding(command, err.Error(), breaks))
			return false, nil
		case err != nil && unknown(err.Error()):
			list = append(list, n.unknownFinding(command, breaks))
			return false, nil
		}
		return true, nil
	}
	if _, err := direct("ping", "health checks fail"); err != nil {
		return nil, err
	}
	if n.acks > 0 {
		if _, err := direct("wait", breaksSteps, "0", "0"); err != nil {
			return nil, err
		}
	}
	if _, err := direct("evalsha", breaksSteps, strings.Repeat("0", 40), "0"); err != nil {
		return nil, err
	}
	may, err := direct("eval", breaksSteps, "return 0", "0")
	if err != nil {
		return nil, err
	}
	if may {
		inside, err := n.inside(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, inside...)
	}
	subscribe, err := n.subscribe(ctx)
	if err != nil {
		return nil, err
	}
	return append(list, subscribe...), nil
}

// inside tries the commands of the scripts.
func (n *server) inside(ctx context.Context) ([]Finding, error) {
	name := n.store.name(n.key)
	text, err := call(ctx, false, func() (string, error) {
		return checkScript.Eval(ctx, n.client, []string{name}, n.store.channel).Text()
	})
	switch {
	case err != nil && refused(err):
		return []Finding{n.deniedFinding("eval", err.Error(), breaksSteps)}, nil
	case err != nil:
		return nil, n.store.explain("trial", n.key, err)
	}
	var list []Finding
	for line := range strings.Lines(text) {
		command, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		breaks := breaksSteps
		if command == "publish" {
			breaks = breaksWaking
		}
		switch {
		case unknown(text):
			list = append(list, n.unknownFinding(command, breaks))
		case denied(text): // others, such as READONLY, the steps will meet
			list = append(list, n.deniedFinding(command, text, breaks))
		}
	}
	return list, nil
}

// subscribe tries what waiters do; those on a Ring poll.
func (n *server) subscribe(ctx context.Context) ([]Finding, error) {
	if n.polls {
		return nil, nil
	}
	sub := n.client.Subscribe(ctx)
	_, err := call(ctx, false, func() (any, error) {
		if err := sub.Subscribe(ctx, n.store.channel); err != nil {
			return nil, err
		}
		return sub.ReceiveTimeout(ctx, readBound)
	})
	go func() { _ = sub.Close() }() // see session
	switch {
	case err == nil:
		return nil, nil
	case !fromServer(err):
		return nil, err
	case unknown(err.Error()):
		return []Finding{n.unknownFinding("subscribe", breaksWaking)}, nil
	case refused(err):
		return []Finding{n.deniedFinding("subscribe", err.Error(), breaksWaking)}, nil
	}
	return nil, n.store.explain("subscribe", n.key, err)
}

// rehearse makes every step of an execution under the throw-away key.
func (n *server) rehearse(ctx context.Context) (found Finding, err error) {
	s, owner := n.store, rand.Text()
	c := idempotent.Claim{Owner: owner, Lease: trialLease, Keep: idempotent.MinDuration}
	steps := []func() error{
		func() error { _, _, err := s.Claim(ctx, n.key, c); return err },
		func() error { return s.Renew(ctx, n.key, owner, trialLease) },
		func() error { _, err := s.look(ctx, "wait", n.key, true); return err },
		func() error { return s.Release(ctx, n.key, owner) },
		func() error {
			return s.Complete(ctx, n.key, owner, idempotent.Outcome{Status: idempotent.Success, Retention: trialLease})
		},
		func() error { _, _, err := s.Load(ctx, n.key); return err },
		func() error { return s.Delete(ctx, n.key) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return n.judge(err)
		}
	}
	if n.acks == 0 {
		return Finding{}, nil
	}
	// The same claim, followed by WAIT on its connection.
	acked := &Store{client: s.client, prefix: s.prefix, channel: s.channel, acks: n.acks, ackTime: n.wait}
	_, _, err = acked.Claim(ctx, n.key, c)
	var few *acksError
	if errors.As(err, &few) {
		found, err = Finding{
			Setting: "replicas", Value: fmt.Sprintf("%d of the %d of WithReplicas acknowledge within %v", few.got, n.acks, n.wait),
			Breaks: "every claim fails: keyed operations are refused",
			Fix:    "connect more replicas, mend their links, or ask for fewer",
		}, nil
	}
	if err != nil {
		return n.judge(err)
	}
	return found, s.Delete(ctx, n.key)
}

// judge turns an error of a step into a finding, where it says what to do.
func (n *server) judge(err error) (Finding, error) {
	switch {
	case errors.Is(err, idempotent.ErrFull):
		return Finding{}, nil
	case hasCode(err, "READONLY"):
		return roleFinding, nil
	case hasCode(err, "NOREPLICAS"):
		return Finding{
			Setting: "min-replicas-to-write", Value: "more than are connected",
			Breaks: "the server refuses every claim: keyed operations are refused",
			Fix:    "connect more replicas, mend their links, or lower min-replicas-to-write",
		}, nil
	case refused(err):
		return n.permissionFinding(fmt.Sprintf("one of ~%s* &%s* %s", n.store.prefix, n.store.prefix, commands), breaksSteps), nil
	}
	return Finding{}, err
}

// unknown reports whether a server's text says that it has no such command, or
// none that a script may use.
func unknown(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "unknown command") || strings.Contains(text, "unknown redis command") ||
		strings.Contains(text, "not allowed from script")
}

// denied reports whether what a command answered inside a script says that the
// user may not run it.
func denied(text string) bool {
	return strings.Contains(text, "The user executing the script") || strings.HasPrefix(strings.TrimPrefix(text, "-"), codeRight+" ")
}

// report collects findings. Servers with the same one share a line.
type report struct {
	several bool
	at      map[Finding][]string
}

// add notes what was found at addr; zero findings are none.
func (r *report) add(addr string, found ...Finding) {
	for _, f := range found {
		if f.Setting == "" || slices.Contains(r.at[f], addr) {
			continue
		}
		if r.at == nil {
			r.at = map[Finding][]string{}
		}
		r.at[f] = append(r.at[f], addr)
	}
}

func (r *report) findings() []Finding {
	list := make([]Finding, 0, len(r.at))
	for f, at := range r.at {
		if r.several && at[0] != "" {
			f.Value += " (" + strings.Join(at, ", ") + ")"
		}
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Setting, b.Setting), strings.Compare(a.Value, b.Value))
	})
	return list
}
