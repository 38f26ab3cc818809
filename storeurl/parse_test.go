package storeurl

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestParse(t *testing.T) {
	t.Parallel()
	const everyOption = "prefix=p:&replicas=2&replicas_timeout=1s&client_name=shop&protocol=2&max_retries=7" +
		"&min_retry_backoff=1ms&max_retry_backoff=2ms&dial_timeout=3ms&read_timeout=4ms&write_timeout=5ms" +
		"&pool_timeout=6ms&pool_fifo=true&pool_size=8&min_idle_conns=9&max_idle_conns=10&max_active_conns=11" +
		"&conn_max_idle_time=12ms&conn_max_lifetime=13ms"
	common := func(o redis.UniversalOptions) redis.UniversalOptions {
		o.ClientName, o.Protocol, o.MaxRetries = "shop", 2, 7
		o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, 2*time.Millisecond
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = 3*time.Millisecond, 4*time.Millisecond, 5*time.Millisecond
		o.PoolTimeout, o.PoolFIFO, o.PoolSize = 6*time.Millisecond, true, 8
		o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 9, 10, 11
		o.ConnMaxIdleTime, o.ConnMaxLifetime = 12*time.Millisecond, 13*time.Millisecond
		return o
	}
	tests := []struct {
		url  string
		want redis.UniversalOptions
	}{
		{"redis://cache.example", redis.UniversalOptions{Addrs: []string{"cache.example:6379"}}},
		{"REDIS://cache.example/", redis.UniversalOptions{Addrs: []string{"cache.example:6379"}}},
		{"redis://:p%40%3A%2F%3F%23%25w@127.0.0.1:7000/3", redis.UniversalOptions{
			Addrs: []string{"127.0.0.1:7000"}, Password: "p@:/?#%w", DB: 3,
		}},
		{"redis://ada:pa55word@[::1]:7000", redis.UniversalOptions{Addrs: []string{"[::1]:7000"}, Username: "ada", Password: "pa55word"}},
		{"redis://[::1]", redis.UniversalOptions{Addrs: []string{"[::1]:6379"}}},
		{"redis://h?max_retries=0", redis.UniversalOptions{Addrs: []string{"h:6379"}, MaxRetries: -1}},
		{"redis://h/1?" + everyOption, common(redis.UniversalOptions{Addrs: []string{"h:6379"}, DB: 1})},
		{"redis+cluster://a,b:7000/0?max_redirects=4&" + everyOption, common(redis.UniversalOptions{
			Addrs: []string{"a:6379", "b:7000"}, MaxRedirects: 4,
		})},
		{"redis+sentinel://u:p@a,b:7000/2?master_name=main&sentinel_username=su&sentinel_password=s%40p&" + everyOption, common(redis.UniversalOptions{
			Addrs: []string{"a:26379", "b:7000"}, DB: 2, Username: "u", Password: "p",
			MasterName: "main", SentinelUsername: "su", SentinelPassword: "s@p",
		})},
	}
	for _, tt := range tests {
		got, err := parse(tt.url)
		require.NoError(t, err, tt.url)
		tt.want.ContextTimeoutEnabled = true
		require.Equal(t, tt.want, got.redis, tt.url)
	}
	got, err := parse("redis+cluster://a?state_reload_interval=3s")
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, got.reload)
	got, err = parse("rediss://a?tls_server_name=other")
	require.NoError(t, err)
	require.Equal(t, "other", got.redis.TLSConfig.ServerName)
	require.False(t, got.redis.TLSConfig.InsecureSkipVerify)
}

// Every URL that cannot be meant is refused, in words that hold no secret.
func TestParse_Refusals(t *testing.T) {
	t.Parallel()
	tests := []struct{ url, says string }{
		{"", "the URL is empty"},
		{"memory", "the scheme is not known"},
		{"localhost:6379", "the scheme is not known"},
		{"mysql://ada:pa55word@h", "the scheme is not known"},
		{"pa55word", "the scheme is not known"},
		{"memory:/keys", "no host and no path"},
		{"memory://", "no host and no path"},
		{"redis:h", "followed by //"},
		{"redis://", "the host is missing"},
		{"redis://:pa55word@", "the host is missing"},
		{"redis:///0", "the host is missing"},
		{"redis://:6379", "the host is missing"},
		{"redis://ada:pa55word", "a port is not a number"},
		{"redis://ada:pa55word@h:port", "a port is not a number"},
		{"redis://h:0", "a port is not a number"},
		{"redis://h:65536", "a port is not a number"},
		{"redis://h:", "a port is not a number"},
		{"redis://::1", "stands in brackets"},
		{"redis://[pa55word]", "not an IPv6 address"},
		{"redis://h h", "characters that no host has"},
		{"redis://:pa55/word@h", "behind the /"},
		{"redis://:pa55?word@h", "behind the ?"},
		{"redis://:pa55#word@h", "there is a #"},
		{"redis://:pa55@word@h", "%3A and %40"},
		{"redis://:pa55:word@h", "%3A and %40"},
		{"redis://:pa55%word@h", "written %25"},
		{"redis://ada@h", "a user without a password"},
		{"redis://a,b", "redis:// has one host; a Cluster is redis+cluster://"},
		{"redis+cluster://a,", "the host is missing"},
		{"redis://h/pa55word", "not the number of a database"},
		{"redis://h/-1", "not the number of a database"},
		{"redis+cluster://h/1", "only database 0"},
		{"redis+sentinel://h", "master_name is missing"},
		{"redis+sentinel://h?master_name=", "master_name is empty"},
		{"redis+sentinel://h?master_name=m&sentinel_username=u", "sentinel_password"},
		{"redis+sentinel://h?master_name=m&sentinel_password=a&pa55word", "%3F and %26"},
		{"redis+sentinel://h?master_name=m&sentinel_password=pa55%word", "written %25"},
		{"redis://h?nonsense=1", "the parameter nonsense is not known; redis has client_name, conn_max"},
		{"redis://h?master_name=m", "the parameter master_name is not known"},
		{"redis://h?tls_ca_file=f", "the parameter tls_ca_file is not known"},
		{"redis://h?max_entries=1", "the parameter max_entries is not known"},
		{"memory:?prefix=p", "the parameter prefix is not known; memory has max_age, max_bytes, max_entries"},
		{"redis://h?skip_verify=true", "the parameter skip_verify is not known"},
		{"redis://h?PREFIX=p", "not written name=value"},
		{"redis://h?prefix=p&prefix=q", "the parameter prefix is given twice"},
		{"redis://h?prefix=", "the parameter prefix is empty"},
		{"redis://h?pool_size=many", `the parameter pool_size: "many" is no whole number`},
		{"redis://h?pool_size=0", "the parameter pool_size: it is 0 and must be at least 1"},
		{"redis://h?max_retries=-1", "must be at least 0"},
		{"redis://h?read_timeout=5", `the parameter read_timeout: "5" is no duration`},
		{"redis://h?read_timeout=0s", "must be positive"},
		{"redis://h?pool_fifo=perhaps", "must be true or false"},
		{"redis://h?protocol=4", "must be 2 or 3"},
		{"redis://h?replicas=1", "go together"},
		{"redis://h?replicas_timeout=1s", "go together"},
		{"redis://h?replicas=1&replicas_timeout=1us", "must be at least 1ms"},
		{"redis+cluster://h?state_reload_interval=often", "no duration"},
		{"rediss://h?tls_ca_file=missing.pem", "the parameter tls_ca_file: open missing.pem"},
		{"rediss://h?tls_ca_file=parse_test.go", "parse_test.go holds no certificate"},
		{"rediss://h?tls_cert_file=a.pem", "go together"},
		{"rediss://h?tls_cert_file=a.pem&tls_key_file=b.pem", "tls_cert_file and tls_key_file: open a.pem"},
		{"memory:?max_entries=0", "the parameter max_entries: memstore: WithMaxEntries(0)"},
		{"memory:?max_entries=1.5", "no whole number"},
		{"memory:?max_bytes=1GB", "no whole number"},
		{"memory:?max_bytes=-1", "WithMaxBytes(-1)"},
		{"memory:?max_age=0s", "WithMaxAge(0s)"},
		{"memory:?min_age=-1s", "WithMinAge(-1s)"},
		{"memory:?min_age=soon", "no duration"},
		{"memory:?sweep_interval=1us", "WithSweepInterval(1µs)"},
		{"memory:?min_age=2h&max_age=1h", "WithMinAge(2h0m0s) is more than WithMaxAge(1h0m0s)"},
		{"memory:?snapshot=", "the parameter snapshot is empty"},
		{"moving:", "followed by two URLs, that of the old store and that of the new one, with a space between"},
		{"moving:redis://ada:pa55@h", "followed by two URLs"},
		{"moving:redis://ada:pa55 word@h redis://i", "a space inside of one is written %20"},
		{"moving:redis://:pa55@h:port redis://i", "the old store: a port is not a number"},
		{"moving:redis://h redis://:pa55@", "the new store: the host is missing"},
		{"moving:redis://h?nonsense=1 redis://i", "the old store: the parameter nonsense is not known; redis has client_name, conn_max"},
		{"moving:redis://h redis+cluster://i?nonsense=1", "the new store: the parameter nonsense is not known; redis+cluster has client_name"},
		{"moving:?old=redis://h redis://i", "the old store: the scheme is not known"},
		{"moving:redis://h moving:redis://i", "the new store: the scheme is not known"},
		{"moving:memory:?snapshot=f redis://i", "the old store: memory: is of one process"},
		{"moving:redis://h memory:", "the new store: memory: is of one process"},
		{"moving:redis://:pa55@h redis://ada:pa55@h:6379/0?pool_size=5&prefix=idempotent:", "the old and the new store are the same one"},
		{"moving:redis://Cache.example redis://cache.Example", "the same one"}, // names of hosts have no case
		{"moving:redis+cluster://a,b redis+cluster://c,b", "the same one"},
		{"moving:redis+sentinel://a?master_name=m redis+sentinel://a,b?master_name=m", "the same one"},
	}
	for _, tt := range tests {
		_, _, err := Open(t.Context(), tt.url)
		require.ErrorIs(t, err, idempotent.ErrInvalid, tt.url)
		require.ErrorContains(t, err, tt.says, tt.url)
		require.Regexp(t, "^storeurl: ", err.Error())
		for _, secret := range []string{"pa55", "word@", "ada"} {
			require.NotContains(t, err.Error(), secret, tt.url)
		}
	}
}

// Two stores of one server are told apart by what tells them apart in Redis.
func TestParseMove(t *testing.T) {
	t.Parallel()
	for _, both := range []string{
		"redis://h redis://i",
		"redis://h\n  redis://h:6380\n",
		"redis://h redis://h/1",
		"redis://h redis://h?prefix=p",
		"redis://h?prefix=p redis://h?prefix=q",
		"redis+sentinel://a?master_name=m redis+sentinel://a?master_name=n",
		"redis://:p%20w@h rediss+cluster://:p%26w@a,b?max_redirects=4",
	} {
		m, err := parseMove(both)
		require.NoError(t, err, both)
		urls := strings.Fields(both)
		for i, got := range []*target{m.old, m.new} {
			want, err := parse(urls[i])
			require.NoError(t, err)
			require.Equal(t, want.redis, got.redis, both)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, url := range []string{
		"memory:?max_age=1h&min_age=1m", "redis://u:p@h:1/2?prefix=p", "rediss+cluster://a,[::1]:2", "redis+sentinel://a?master_name=m",
	} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		got, err := parse(url)
		if err == nil && got.scheme != memory {
			require.NotEmpty(t, got.redis.Addrs)
			require.NotContains(t, got.redis.Addrs, "")
		}
	})
}
