package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

const wantRefusal = `
shop: -store: this Redis does not keep the promise that nothing is paid twice:

  appendonly: no
    breaks: a crash of the server loses every claim and record since its last snapshot, or all of them without one: those operations run again
    fix:    set appendonly yes and appendfsync always, in redis.conf or by CONFIG SET and CONFIG REWRITE

  maxmemory-policy: allkeys-lru
    breaks: at its maxmemory the server throws away claims of running operations and records of finished ones: they run again
    fix:    set maxmemory-policy noeviction, in redis.conf or by CONFIG SET and CONFIG REWRITE; a full server then refuses new keys. Give a cache a server of its own

Change that and start again, or start with -unsafe-redis to run on it as it is.
`

// C040: the shop does not start on a Redis that could make it pay twice.
func TestC040_RefusesAnUnsafeRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	for _, args := range [][]string{{}, {"-demo"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 1, run(append(args, "-store", "redis://"+server.Addr), &stdout, &stderr))
		require.Equal(t, strings.TrimPrefix(wantRefusal, "\n"), stderr.String())
		require.Empty(t, stdout.String())
	}
}

// Of a move both have to keep the promise.
func TestRefusesAnUnsafeMove(t *testing.T) {
	t.Parallel()
	good, bad := redistest.Start(t, durable...).Addr, redistest.Start(t).Addr
	for which, store := range map[string]string{
		"old": "moving:redis://" + bad + " redis://" + good,
		"new": "moving:redis://" + good + " redis://" + bad,
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 1, run([]string{"-addr", "127.0.0.1:-1", "-store", store}, &stdout, &stderr))
		require.True(t, strings.HasPrefix(stderr.String(), "shop: -store: the "+which+
			" Redis does not keep the promise that nothing is paid twice:\n\n  appendonly: no\n"), stderr.String())
	}
}

func TestUnsafeRedisIsLogged(t *testing.T) {
	t.Parallel()
	p := start(t, build(t), "-unsafe-redis", "-store", "redis://"+redistest.Start(t).Addr)
	require.Regexp(t, `level=WARN msg="unsafe Redis" which=this setting=appendonly value=no breaks=".*" fix=".*"`, p.log())
	require.Equal(t, "201 first", p.send(t.Context(), request{path: "/orders", token: ada, key: "k", body: tea}).String())
}
