package storeurl_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/memstore"
	"github.com/idempotent-go/idempotent/redisstore"
	"github.com/idempotent-go/idempotent/storeurl"
)

func open(t *testing.T, url string) (idempotent.Store, func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	store, end, err := storeurl.Open(ctx, url)
	require.NoError(t, err)
	return store, end
}

// works runs an operation once, in the store that url names and again in
// another one of the same name.
func works(t *testing.T, url string) {
	t.Helper()
	key := t.Name()
	for i := range 2 {
		store, end := open(t, url)
		guard := idempotent.New(store)
		rec, replayed, err := guard.Run(t.Context(), key, func(context.Context) (idempotent.Class, string) {
			return idempotent.ClassSuccess, "result"
		})
		require.NoError(t, err)
		require.Equal(t, "result", rec.Result)
		require.Equal(t, i == 1, replayed)
		require.NoError(t, end())
		require.ErrorIs(t, idempotent.Ping(t.Context(), store), idempotent.ErrClosed)
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	store, end := open(t, "memory:?max_entries=5&max_bytes=1000000&max_age=2h&min_age=1h&sweep_interval=0s")
	for i := range 5 {
		_, claimed, err := store.Claim(t.Context(), fmt.Sprint(i), idempotent.Claim{Owner: "o", Lease: time.Minute, Keep: time.Hour})
		require.NoError(t, err)
		require.True(t, claimed)
	}
	_, _, err := store.Claim(t.Context(), "more", idempotent.Claim{Owner: "o", Lease: time.Minute, Keep: time.Hour})
	require.ErrorIs(t, err, idempotent.ErrFull)
	require.NoError(t, end())
	require.IsType(t, (*memstore.Store)(nil), store)
	_, end = open(t, "memory:")
	require.NoError(t, end())
}

func TestMemory_Snapshot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys and more")
	works(t, "memory:?snapshot="+path)
	require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
	_, _, err := storeurl.Open(t.Context(), "memory:?snapshot="+path)
	require.ErrorIs(t, err, idempotent.ErrCorrupt)
	require.ErrorContains(t, err, path)
}

func TestRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "p@:/?#% w")
	url := "redis://:p%40%3A%2F%3F%23%25%20w@" + s.Addr + "/3?prefix=mine:"
	works(t, url)
	store, end := open(t, url)
	require.IsType(t, (*redisstore.Store)(nil), store)
	require.NoError(t, end())

	for name, url := range map[string]string{
		"a wrong password": "redis://:pa55word@" + s.Addr,
		"no password":      "redis://" + s.Addr,
	} {
		_, _, err := storeurl.Open(t.Context(), url)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, idempotent.ErrInvalid, name)
		require.NotContains(t, err.Error(), "pa55word", name)
	}
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, _, err := storeurl.Open(ctx, url)
	require.Error(t, err, "nobody answers")
	require.NotContains(t, err.Error(), "p@:/")
}

// A move answers with what the old store has recorded, and what it records is in
// both.
func TestMove(t *testing.T) {
	t.Parallel()
	old, new := redistest.Start(t), redistest.Start(t, "--requirepass", "p& w")
	from, to := "redis://"+old.Addr+"?client_name=mover", "redis://:p&%20w@"+new.Addr
	run := func(url, key string) (replayed bool) {
		store, end := open(t, url)
		_, replayed, err := idempotent.New(store).Run(t.Context(), key, func(context.Context) (idempotent.Class, string) {
			return idempotent.ClassSuccess, "result"
		})
		require.NoError(t, err)
		require.NoError(t, end())
		for _, s := range idempotent.Stores(store) {
			require.IsType(t, (*redisstore.Store)(nil), s)
			require.ErrorIs(t, idempotent.Ping(t.Context(), s), idempotent.ErrClosed)
		}
		return replayed
	}
	move := "Moving:" + from + " " + to

	require.False(t, run(from, "before"))
	store, end := open(t, move)
	for i, s := range idempotent.Stores(store) {
		entries, err := idempotent.List(t.Context(), s, idempotent.ListQuery{})
		require.NoError(t, err)
		require.Len(t, entries.Entries, 1-i, "the old one first")
	}
	require.NoError(t, end())

	require.True(t, run(move, "before"))
	require.False(t, run(move, "during"))
	require.True(t, run(from, "during"))
	require.True(t, run(to, "during"))
	require.False(t, run(to, "before"), "the new store alone does not know")

	connected := func() bool { return strings.Contains(old.Must(t, "CLIENT", "LIST"), "name=mover") }
	store, end = open(t, move)
	require.NoError(t, idempotent.Ping(t.Context(), store))
	require.True(t, connected())
	require.NoError(t, end())
	_, _, err := storeurl.Open(t.Context(), "moving:"+from+" redis://:pa55word@"+new.Addr)
	require.ErrorContains(t, err, "storeurl: the new store: ")
	require.NotErrorIs(t, err, idempotent.ErrInvalid)
	require.NotContains(t, err.Error(), "pa55")
	// The server sees the end of a connection before it has answered all of these.
	// Later on a garbage collection ends what was left open.
	looks := 100
	for ; looks > 0 && connected(); looks-- {
	}
	require.NotZero(t, looks, "the old store is left open")
	old.Stop()
	_, _, err = storeurl.Open(t.Context(), "moving:"+from+"&max_retries=0 "+to)
	require.ErrorContains(t, err, "storeurl: the old store: ")
}

func TestCluster(t *testing.T) {
	t.Parallel()
	s := redistest.StartCluster(t)
	works(t, "redis+cluster://127.0.0.1:1,"+s.Addr+"?prefix={mine}:&max_redirects=2&max_retries=1")
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	const secret = "pa55:word"
	primary := redistest.Start(t, "--requirepass", secret)
	s := redistest.StartSentinel(t, "main", primary.Addr, 1, "sentinel auth-pass main "+secret+"\nrequirepass s3ntinel@")
	url := func(name, password string) string {
		return "redis+sentinel://:pa55%3Aword@" + s.Addr + ",127.0.0.1:1/2?master_name=" + name + "&sentinel_password=" + password
	}
	works(t, url("main", "s3ntinel%40"))
	for _, wrong := range []string{url("other", "s3ntinel%40"), url("main", "wr0ng")} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, _, err := storeurl.Open(ctx, wrong)
		cancel()
		require.Error(t, err, wrong)
		for _, text := range []string{"pa55", "s3ntinel", "wr0ng"} {
			require.NotContains(t, err.Error(), text)
		}
	}
}

// The server's certificate is verified, and the client's is asked for.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	_, port, err := net.SplitHostPort(freeAddr(t))
	require.NoError(t, err)
	redistest.Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	url := "rediss://127.0.0.1:" + port + "/0?tls_ca_file=" + cert + "&tls_server_name=cache.example"
	pair := "&tls_cert_file=" + cert + "&tls_key_file=" + key
	works(t, url+pair)
	for name, wrong := range map[string]string{
		"no client certificate": url,
		"an unknown authority":  "rediss://127.0.0.1:" + port + "?tls_server_name=cache.example" + pair,
		"another name":          "rediss://127.0.0.1:" + port + "?tls_ca_file=" + cert + pair,
	} {
		_, _, err := storeurl.Open(t.Context(), wrong+"&max_retries=0&dial_timeout=1s")
		require.Error(t, err, name)
	}
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}

// certificate writes a certificate of cache.example, signed by itself, and its
// key.
func certificate(t *testing.T, dir string) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cache.example"}, DNSNames: []string{"cache.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}
