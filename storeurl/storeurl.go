// Package storeurl opens the store that a URL names, so that moving from memory
// to Redis is a change of configuration, not of code:
//
//	memory:                                                   this process alone
//	redis://ada:secret@cache.example:6379/0                   one server
//	rediss://cache.example                                    the same over TLS
//	redis+cluster://a.example:6379,b.example:6379             a Cluster, by some of its nodes
//	redis+sentinel://a.example,b.example/0?master_name=main   a primary, by its Sentinels
//
// rediss+cluster and rediss+sentinel are the last two over TLS. The user and the
// password before the host are those of the Redis servers; the path is the
// number of the database, 0 where it is missing, and always 0 in a Cluster. Ports
// are 6379, and 26379 for Sentinels, where they are missing. What has a meaning
// in a URL, such as / ? # @ : and %, is percent-encoded in a password.
//
// # A move
//
//	moving:redis://old.example redis://new.example            while the first is left for the second
//
// is the store that [idempotent.Moving] makes of two Redis stores: moving: and
// their URLs, the old one first, with a space between. Each is written as it is
// alone, parameters included, so that a deployment can put both together. The
// versions of a program that moves are then three values of one setting: the old
// URL, moving: with both, and the new URL.
//
// # Parameters
//
// Options are parameters of the query; each may be given once, and one that is
// not known is an error that names it. Durations are written as in 500ms or 24h.
// Without a parameter the default of the option it stands for applies.
//
// Of memory, all options of package memstore that are text:
//
//	max_entries  max_bytes  max_age  min_age  sweep_interval  snapshot
//
// Of package redisstore; replicas and replicas_timeout go together:
//
//	prefix  replicas  replicas_timeout
//
// Of the client (go-redis), as there, but that 0 is refused where it would
// stand for the default, and that max_retries=0 means none:
//
//	client_name  protocol  max_retries  min_retry_backoff  max_retry_backoff
//	dial_timeout  read_timeout  write_timeout  pool_timeout  pool_fifo
//	pool_size  min_idle_conns  max_idle_conns  max_active_conns
//	conn_max_idle_time  conn_max_lifetime
//
// Of TLS; files are PEM, and the server's certificate is always verified:
//
//	tls_ca_file  tls_cert_file  tls_key_file  tls_server_name
//
// Of a Cluster, state_reload_interval being how often the client looks whether a
// primary has a successor, by default every ten seconds:
//
//	max_redirects  state_reload_interval
//
// Of Sentinels, where master_name is needed, and the others are for Sentinels
// that ask for a password of their own:
//
//	master_name  sentinel_username  sentinel_password
package storeurl

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
)

// Open returns the store that url names, and a function that ends the store and
// then the client it stands on, of a move those of both; call it once, last of
// all. A Redis that does not answer is an error: Open blocks until it has
// answered, until ctx ends, or until the client gives up.
//
// An empty URL, one that cannot be read, a parameter that is not known or makes
// no sense, and a snapshot that cannot be read are errors, which match
// [idempotent.ErrInvalid] but for the last. No error text holds a password, nor
// any other part of the URL that could have been meant as one.
func Open(ctx context.Context, url string) (idempotent.Store, func() error, error) {
	s, err := read(url)
	if err != nil {
		return nil, nil, fmt.Errorf("storeurl: %w: %w", idempotent.ErrInvalid, err)
	}
	store, end, err := s.open(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("storeurl: %w", err)
	}
	return store, end, nil
}

// source is what a URL says: one store, or two of them.
type source interface {
	open(ctx context.Context) (idempotent.Store, func() error, error)
}

func read(url string) (source, error) {
	if both, ok := cutMoving(url); ok {
		return parseMove(both)
	}
	return parse(url)
}

func (t *target) open(ctx context.Context) (idempotent.Store, func() error, error) {
	if t.scheme == memory {
		store, err := memstore.Open(t.memory...)
		if err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	}
	client := t.client()
	store := redisstore.New(client, t.store...)
	end := func() error { return errors.Join(store.Close(), client.Close()) }
	if err := store.Ping(ctx); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return store, end, nil
}

// client returns a client that has sent nothing yet.
func (t *target) client() redis.UniversalClient {
	switch t.scheme {
	case cluster, clusterTLS:
		o := t.redis.Cluster()
		o.ClusterStateReloadInterval = t.reload
		return redis.NewClusterClient(o)
	case sentinel, sentinelTLS:
		return redis.NewFailoverClient(t.redis.Failover())
	default:
		return redis.NewClient(t.redis.Simple())
	}
}
