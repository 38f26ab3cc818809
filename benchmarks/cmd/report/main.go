package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	began := time.Now()
	b := &bench{ctx: ctx, rounds: 5, quick: len(os.Args) > 1 && os.Args[1] == "-quick", progress: func(f string, a ...any) {
		fmt.Fprintf(os.Stderr, "%5.0fs  "+f+"\n", append([]any{time.Since(began).Seconds()}, a...)...)
	}}
	b.server, _ = redistest.Launch("")
	defer b.server.Stop()
	for _, r := range rows() {
		b.progress("%s", r.id)
		o, err := r.measure(b)
		res := judge(r, o, err)
		fmt.Println(r.id, res.verdict, res.figure(), o.notes)
	}
}
