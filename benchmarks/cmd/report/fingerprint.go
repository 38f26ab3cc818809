package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/benchmarks/measure"
)

// orderOf returns a JSON order with nested lines of about size bytes, its
// members not in canonical order.
func orderOf(size int) []byte {
	var out bytes.Buffer
	out.WriteString(`{"order":"ord_01HZX3","currency":"EUR","customer":"Müller & Söhne","lines":[`)
	for i := 0; ; i++ {
		line := fmt.Sprintf(`{"sku":"sku-%04d","name":"Widget, large, blue","count":%d,"price":19.95,"tags":{"colour":"blue","warehouse":"north-2"}}`, i, i+1)
		if out.Len()+len(line)+2 > size && i > 0 {
			break
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(line)
	}
	out.WriteString("]}")
	return out.Bytes()
}

// canonicalJSON is P10.
func canonicalJSON(b *bench) (outcome, error) {
	var o outcome
	body := orderOf(1 << 10)
	if !json.Valid(body) {
		return o, fmt.Errorf("the order of %d bytes is no JSON", len(body))
	}
	r := &http.Request{Header: http.Header{"Content-Type": {"application/json"}}}
	n := b.size(50_000, 2000)
	got, err := b.compare(
		measure.Side{Name: "SHA-256", Run: func() (float64, error) {
			return measure.Parallel(1, n, func(_, from, to int) error {
				var last [sha256.Size]byte
				for range to - from {
					last = sha256.Sum256(body)
				}
				if last == [sha256.Size]byte{} {
					return fmt.Errorf("the sum is zero")
				}
				return nil
			})
		}},
		measure.Side{Name: "CanonicalJSON", Run: func() (float64, error) {
			return measure.Parallel(1, n, measure.Each(func(int, int) error {
				_, err := idempotent.CanonicalJSON(r, body)
				return err
			}))
		}},
		measure.Side{Name: "decode and encode", Run: func() (float64, error) {
			return measure.Parallel(1, n, measure.Each(func(int, int) error { return decodeAndEncode(body) }))
		}},
	)
	if err != nil {
		return o, err
	}
	o.checks = []check{
		{got: got[1].Ratio(got[0]).Median(), limit: 8, unit: " ×"},
		{got: testing.AllocsPerRun(1000, func() { _, _ = idempotent.CanonicalJSON(r, body) }), limit: 6, unit: " allocations"},
		{what: "number literals that are merged:", got: float64(mergedLiterals(r))},
	}
	o.note("%d bytes: SHA-256 %s ns, CanonicalJSON %s ns", len(body), number(got[0].Median()), number(got[1].Median()))
	o.note("decoding into a map and encoding it again, as people do: %s ×", number(got[2].Ratio(got[0]).Median()))
	return o, nil
}

// mergedLiterals counts pairs of different number literals with one
// fingerprint.
func mergedLiterals(r *http.Request) int {
	merged := 0
	for _, pair := range [][2]string{{"1", "1.0"}, {"9007199254740993", "9007199254740992"}, {"1e2", "100"}, {"0.1", "0.10"}} {
		a, _ := idempotent.CanonicalJSON(r, []byte(`{"n":`+pair[0]+`}`))
		b, _ := idempotent.CanonicalJSON(r, []byte(`{"n":`+pair[1]+`}`))
		if a == b {
			merged++
		}
	}
	return merged
}

// decodeAndEncode is the usual way to make JSON canonical.
func decodeAndEncode(body []byte) error {
	var v any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return err
	}
	data, err := json.Marshal(v)
	sum := sha256.Sum256(data)
	_ = sum
	return err
}
