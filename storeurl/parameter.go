package storeurl

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// setter takes the value of a parameter. Its error quotes the value only where
// that is no secret.
type setter func(value string) error

// known returns the parameters that the scheme has.
func (t *target) known() map[string]setter {
	if t.scheme == memory {
		return t.memoryParameters()
	}
	all := t.redisParameters()
	add := func(more map[string]setter) {
		for name, set := range more {
			all[name] = set
		}
	}
	if t.overTLS() {
		add(map[string]setter{
			"tls_ca_file":     text(&t.tls.ca),
			"tls_cert_file":   text(&t.tls.cert),
			"tls_key_file":    text(&t.tls.key),
			"tls_server_name": text(&t.tls.server),
		})
	}
	switch t.scheme {
	case cluster, clusterTLS:
		add(map[string]setter{
			"max_redirects":         number(&t.redis.MaxRedirects, 1),
			"state_reload_interval": duration(&t.reload),
		})
	case sentinel, sentinelTLS:
		add(map[string]setter{
			"master_name":       text(&t.redis.MasterName),
			"sentinel_username": text(&t.redis.SentinelUsername),
			"sentinel_password": text(&t.redis.SentinelPassword),
		})
	}
	return all
}

func (t *target) memoryParameters() map[string]setter {
	add := func(option func() memstore.Option) error {
		return refusing(func() { t.memory = append(t.memory, option()) })
	}
	age := func(option func(time.Duration) memstore.Option) setter {
		return func(value string) error {
			d, err := time.ParseDuration(value)
			if err != nil {
				return notDuration(value)
			}
			return add(func() memstore.Option { return option(d) })
		}
	}
	return map[string]setter{
		"max_entries": func(value string) error {
			n, err := strconv.Atoi(value)
			if err != nil {
				return notNumber(value)
			}
			return add(func() memstore.Option { return memstore.WithMaxEntries(n) })
		},
		"max_bytes": func(value string) error {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return notNumber(value)
			}
			return add(func() memstore.Option { return memstore.WithMaxBytes(n) })
		},
		"max_age":        age(memstore.WithMaxAge),
		"min_age":        age(memstore.WithMinAge),
		"sweep_interval": age(memstore.WithSweepInterval),
		"snapshot": func(value string) error {
			t.snapshot = value
			return nil
		},
	}
}

func (t *target) redisParameters() map[string]setter {
	r := &t.redis
	return map[string]setter{
		"prefix":   text(&t.prefix),
		"replicas": number(&t.replicas, 1),
		"replicas_timeout": func(value string) error {
			if err := duration(&t.replicasTimeout)(value); err != nil {
				return err
			}
			if t.replicasTimeout < idempotent.MinDuration {
				return fmt.Errorf("it is %s and must be at least %v", value, idempotent.MinDuration)
			}
			return nil
		},
		"client_name": text(&r.ClientName),
		"protocol": func(value string) error {
			if value != "2" && value != "3" {
				return fmt.Errorf("it is %q and must be 2 or 3", value)
			}
			return number(&r.Protocol, 2)(value)
		},
		"max_retries": func(value string) error {
			err := number(&r.MaxRetries, 0)(value)
			if err == nil && r.MaxRetries == 0 {
				r.MaxRetries = -1 // 0 is the client's word for its default
			}
			return err
		},
		"min_retry_backoff":  duration(&r.MinRetryBackoff),
		"max_retry_backoff":  duration(&r.MaxRetryBackoff),
		"dial_timeout":       duration(&r.DialTimeout),
		"read_timeout":       duration(&r.ReadTimeout),
		"write_timeout":      duration(&r.WriteTimeout),
		"pool_timeout":       duration(&r.PoolTimeout),
		"pool_size":          number(&r.PoolSize, 1),
		"min_idle_conns":     number(&r.MinIdleConns, 1),
		"max_idle_conns":     number(&r.MaxIdleConns, 1),
		"max_active_conns":   number(&r.MaxActiveConns, 1),
		"conn_max_idle_time": duration(&r.ConnMaxIdleTime),
		"conn_max_lifetime":  duration(&r.ConnMaxLifetime),
		"pool_fifo": func(value string) (err error) {
			if r.PoolFIFO, err = strconv.ParseBool(value); err != nil {
				return fmt.Errorf("it is %q and must be true or false", value)
			}
			return nil
		},
	}
}

func text(to *string) setter {
	return func(value string) error {
		*to = value
		return nil
	}
}

// number takes an integer of at least least.
func number(to *int, least int) setter {
	return func(value string) error {
		n, err := strconv.Atoi(value)
		if err != nil {
			return notNumber(value)
		}
		if n < least {
			return fmt.Errorf("it is %d and must be at least %d", n, least)
		}
		*to = n
		return nil
	}
}

// duration takes a positive duration.
func duration(to *time.Duration) setter {
	return func(value string) error {
		d, err := time.ParseDuration(value)
		if err != nil {
			return notDuration(value)
		}
		if d <= 0 {
			return fmt.Errorf("it is %v and must be positive", d)
		}
		*to = d
		return nil
	}
}

func notNumber(value string) error { return fmt.Errorf("%q is no whole number", value) }

func notDuration(value string) error {
	return fmt.Errorf("%q is no duration, such as 500ms or 24h", value)
}

// refusing calls f, which gives options to a constructor, and returns the text
// of its panic: what is a programming error elsewhere is somebody's
// configuration here, and is checked in one place.
func refusing(f func()) (err error) {
	defer func() {
		if why := recover(); why != nil {
			text, ok := why.(string)
			if !ok {
				panic(why)
			}
			err = errors.New(text)
		}
	}()
	f()
	return nil
}

// certPool returns the certificates in a PEM file.
func certPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return pool, nil
}
