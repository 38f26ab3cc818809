package peer

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	"github.com/redis/go-redis/v9"
)

// kv is the little that the plain middleware needs.
type kv interface {
	SetNX(ctx context.Context, key string, value []byte) (bool, error)
	Get(ctx context.Context, key string) ([]byte, error)
	Set(ctx context.Context, key string, value []byte) error
}

// PlainMemory is the app behind a plain middleware over a map.
func PlainMemory(op func() string) *App {
	return netHTTP(plain(&mapKV{m: map[string][]byte{}}, orders(op)), func() {})
}

// PlainRedis is the app behind a plain middleware over Redis.
func PlainRedis(op func() string, client *redis.Client) *App {
	return netHTTP(plain(redisKV{client}, orders(op)), func() { _ = client.Close() })
}

func openPlainRedis(op func() string, addr string) (Peer, error) {
	return newAppPeer(PlainRedis(op, NewClient(addr))), nil
}

// plain is the middleware that people write: SETNX a marker, run, SET the
// answer; whoever comes late GETs. It knows no owner, no lease and no
// fingerprint, and a process that dies leaves its marker behind.
func plain(store kv, next http.Handler) http.Handler {
	const running = "running"
	type answer struct {
		Status int
		Header http.Header
		Body   []byte
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if key == "" {
			next.ServeHTTP(w, r)
			return
		}
		key = "idempotency:" + key
		first, err := store.SetNX(r.Context(), key, []byte(running))
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		var a answer
		if first {
			held := &writer{header: make(http.Header)}
			next.ServeHTTP(held, r)
			a = answer{Status: held.status, Header: held.header, Body: held.body}
			data, err := json.Marshal(a)
			if err == nil {
				err = store.Set(r.Context(), key, data)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		} else {
			data, err := store.Get(r.Context(), key)
			if err == nil && string(data) == running {
				w.WriteHeader(http.StatusConflict)
				return
			}
			if err == nil {
				err = json.Unmarshal(data, &a)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		for name, values := range a.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body)
	})
}

type mapKV struct {
	mu sync.RWMutex // guards m
	m  map[string][]byte
}

func (s *mapKV) SetNX(_ context.Context, key string, value []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.m[key]; ok {
		return false, nil
	}
	s.m[key] = value
	return true, nil
}

func (s *mapKV) Get(_ context.Context, key string) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, ok := s.m[key]
	if !ok {
		return nil, errors.New("peer: not found")
	}
	return value, nil
}

func (s *mapKV) Set(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[key] = value
	return nil
}

type redisKV struct{ client *redis.Client }

func (s redisKV) SetNX(ctx context.Context, key string, value []byte) (bool, error) {
	err := s.client.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: Retention}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

func (s redisKV) Get(ctx context.Context, key string) ([]byte, error) {
	return s.client.Get(ctx, key).Bytes()
}

func (s redisKV) Set(ctx context.Context, key string, value []byte) error {
	return s.client.Set(ctx, key, value, Retention).Err()
}
