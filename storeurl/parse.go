package storeurl

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
)

// The schemes.
const (
	memory      = "memory"
	single      = "redis"
	singleTLS   = "rediss"
	cluster     = "redis+cluster"
	clusterTLS  = "rediss+cluster"
	sentinel    = "redis+sentinel"
	sentinelTLS = "rediss+sentinel"
)

// reloadDefault is how often a Cluster client looks at the map of slots.
const reloadDefault = 10 * time.Second

// target is what a URL says.
type target struct {
	scheme   string
	memory   []memstore.Option
	snapshot string
	store    []redisstore.Option
	prefix   string // of the names in Redis
	redis    redis.UniversalOptions
	reload   time.Duration // of a Cluster's state

	replicas        int
	replicasTimeout time.Duration
	tls             tlsFiles
}

func (t *target) overTLS() bool { return strings.HasPrefix(t.scheme, singleTLS) }

// parse reads a URL. It is no work for net/url, which knows one host, and whose
// errors quote what may be a password that was not encoded. So errors here
// quote the names of schemes and parameters, and values of parameters that are
// no secret; of what stands between them nothing.
func parse(text string) (*target, error) {
	if text == "" {
		return nil, errors.New("the URL is empty; memory: names a store in memory")
	}
	scheme, rest, ok := strings.Cut(text, ":")
	scheme = strings.ToLower(scheme)
	t := &target{scheme: scheme, prefix: redisstore.DefaultPrefix, reload: reloadDefault}
	switch scheme {
	case memory, single, singleTLS, cluster, clusterTLS, sentinel, sentinelTLS:
	default:
		ok = false
	}
	if !ok {
		return nil, errors.New("the scheme is not known; it is one of memory:, redis://, rediss://, " +
			"redis+cluster://, rediss+cluster://, redis+sentinel:// and rediss+sentinel://, or moving: and two of them")
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New("there is a #; in a password it is written %23")
	}
	rest, query, _ := strings.Cut(rest, "?")
	if strings.Contains(query, "@") {
		return nil, errors.New("there is an @ behind the ?; in a password they are written %40 and %3F")
	}
	if err := t.place(rest); err != nil {
		return nil, err
	}
	if err := t.parameters(query); err != nil {
		return nil, err
	}
	return t, t.finish()
}

// place reads what is between scheme and query.
func (t *target) place(text string) error {
	if t.scheme == memory {
		if text != "" {
			return errors.New("memory: has no host and no path; options follow a ?")
		}
		return nil
	}
	text, ok := strings.CutPrefix(text, "//")
	if !ok {
		return fmt.Errorf("%s: is followed by //", t.scheme)
	}
	hosts, path, _ := strings.Cut(text, "/")
	if strings.Contains(path, "@") {
		return errors.New("there is an @ behind the /; in a password they are written %40 and %2F")
	}
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		if err := t.user(hosts[:i]); err != nil {
			return err
		}
		hosts = hosts[i+1:]
	}
	if err := t.hosts(hosts); err != nil {
		return err
	}
	if path == "" {
		return nil
	}
	db, err := strconv.Atoi(path)
	if err != nil || db < 0 {
		return errors.New("the path is not the number of a database")
	}
	if db != 0 && (t.scheme == cluster || t.scheme == clusterTLS) {
		return errors.New("a Cluster has only database 0")
	}
	t.redis.DB = db
	return nil
}

// user reads user:password.
func (t *target) user(text string) error {
	name, password, _ := strings.Cut(text, ":")
	var errs [2]error
	t.redis.Username, errs[0] = url.PathUnescape(name)
	t.redis.Password, errs[1] = url.PathUnescape(password)
	if errors.Join(errs[:]...) != nil {
		return errors.New("user or password hold a % that begins no escape; it is written %25")
	}
	if strings.Contains(text, "@") || strings.Contains(password, ":") {
		return errors.New("user or password hold a : or an @; they are written %3A and %40")
	}
	if name != "" && password == "" {
		return errors.New("there is a user without a password; a password alone follows a colon")
	}
	return nil
}

var hostName = regexp.MustCompile(`^[0-9A-Za-z._-]+$|^[0-9A-Fa-f:.]+(%[0-9A-Za-z._-]+)?$`)

// hosts reads host, host:port or several of them with commas between.
func (t *target) hosts(text string) error {
	port := "6379"
	if t.scheme == sentinel || t.scheme == sentinelTLS {
		port = "26379"
	}
	for one := range strings.SplitSeq(text, ",") {
		host, at := one, port
		if i := strings.LastIndexByte(one, ':'); i >= 0 && !strings.HasSuffix(one, "]") {
			host, at = one[:i], one[i+1:]
		}
		if inner, ok := strings.CutPrefix(host, "["); ok {
			if host, ok = strings.CutSuffix(inner, "]"); !ok || net.ParseIP(host) == nil {
				return errors.New("a host in brackets is not an IPv6 address")
			}
		} else if strings.Contains(host, ":") {
			return errors.New("a host has more than one colon; an IPv6 address stands in brackets")
		}
		if host == "" {
			return errors.New("the host is missing")
		}
		if n, err := strconv.ParseUint(at, 10, 16); err != nil || n == 0 {
			return errors.New("a port is not a number between 1 and 65535; what has a meaning in a URL is percent-encoded in a password")
		}
		if !hostName.MatchString(host) {
			return errors.New("a host has characters that no host has; what has a meaning in a URL is percent-encoded in a password")
		}
		t.redis.Addrs = append(t.redis.Addrs, net.JoinHostPort(host, at))
	}
	if len(t.redis.Addrs) > 1 && (t.scheme == single || t.scheme == singleTLS) {
		return fmt.Errorf("%s:// has one host; a Cluster is %s+cluster://", t.scheme, t.scheme)
	}
	return nil
}

var parameterName = regexp.MustCompile(`^[a-z][a-z_]*$`)

// parameters reads the query.
func (t *target) parameters(query string) error {
	if query == "" {
		return nil
	}
	known := t.known()
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(query, "&") {
		name, raw, ok := strings.Cut(pair, "=")
		if !ok || !parameterName.MatchString(name) {
			return errors.New("a parameter is not written name=value; in a password ? and & are written %3F and %26")
		}
		set, ok := known[name]
		switch {
		case !ok:
			names := make([]string, 0, len(known))
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			return fmt.Errorf("the parameter %s is not known; %s has %s", name, t.scheme, strings.Join(names, ", "))
		case seen[name]:
			return fmt.Errorf("the parameter %s is given twice", name)
		}
		seen[name] = true
		value, err := url.QueryUnescape(raw)
		switch {
		case err != nil:
			return fmt.Errorf("the parameter %s has a %% that begins no escape; it is written %%25", name)
		case value == "":
			return fmt.Errorf("the parameter %s is empty", name)
		}
		if err := set(value); err != nil {
			return fmt.Errorf("the parameter %s: %w", name, err)
		}
	}
	return nil
}

// finish checks what takes more than one parameter.
func (t *target) finish() error {
	if t.scheme == memory {
		// Options that contradict each other panic, as they should in a program.
		// The snapshot comes after them: it is not to be opened for the trial.
		err := refusing(func() { _ = memstore.New(t.memory...).Close() })
		if t.snapshot != "" {
			t.memory = append(t.memory, memstore.WithSnapshot(t.snapshot))
		}
		return err
	}
	t.store = append(t.store, redisstore.WithPrefix(t.prefix))
	t.redis.ContextTimeoutEnabled = true // New asks for it where it cannot set it
	switch {
	case t.replicas > 0 && t.replicasTimeout > 0:
		t.store = append(t.store, redisstore.WithReplicas(t.replicas, t.replicasTimeout))
	case t.replicas > 0 || t.replicasTimeout > 0:
		return errors.New("replicas and replicas_timeout go together")
	}
	if (t.scheme == sentinel || t.scheme == sentinelTLS) && t.redis.MasterName == "" {
		return errors.New("master_name is missing: what the Sentinels call the primary")
	}
	if t.redis.SentinelUsername != "" && t.redis.SentinelPassword == "" {
		return errors.New("sentinel_username goes with a sentinel_password")
	}
	if !t.overTLS() {
		return nil
	}
	config, err := t.tls.config()
	t.redis.TLSConfig = config
	return err
}

// tlsFiles names what a TLS connection stands on.
type tlsFiles struct{ ca, cert, key, server string }

func (f tlsFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.server}
	if f.ca != "" {
		pool, err := certPool(f.ca)
		if err != nil {
			return nil, fmt.Errorf("the parameter tls_ca_file: %w", err)
		}
		c.RootCAs = pool
	}
	if (f.cert == "") != (f.key == "") {
		return nil, errors.New("tls_cert_file and tls_key_file go together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("the parameters tls_cert_file and tls_key_file: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
