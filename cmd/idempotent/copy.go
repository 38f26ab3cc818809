package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

var copyCommand = command{
	name: "copy", args: "SNAPSHOT",
	summary: "copy the snapshot of a store in memory into another store",
	help: `SNAPSHOT is the file of memstore.WithSnapshot. Stop the program first: its Close
writes the file. The file stays as it is. Entries keep what is left of their
retention. A key that the store has already is left alone and counted, so that
an interrupted copy can be run again. A file that is damaged is refused as a
whole, before anything is copied.

What is lost: the times of the claim and of the completion become that of the
copy, and fences begin anew, above those of the snapshot as long as the clocks
agree. A claim that was running when the program ended becomes an unknown
outcome, to be settled with resolve, also where WithTakeOver would have run it
again. What the memory store had evicted was lost before.
`,
	setup: setupCopy,
}

// copied counts what became of the entries.
type copied struct {
	Copied  int `json:"copied"`
	Unknown int `json:"unknown"` // of these, outcomes to settle
	Present int `json:"present"` // left alone: the store had the key
	Expired int `json:"expired"` // past their retention
}

func setupCopy(flags *flag.FlagSet) action {
	stale := flags.Bool("stale", false, "copy also a file that is in use, or was when its program died: what came after it was written is missing")
	always := flags.Bool("progress", false, "tell how far it is, also where stderr is no terminal")
	return func(ctx context.Context, s *session) (err error) {
		if len(s.args) != 1 {
			return usage("one SNAPSHOT is meant, the file of memstore.WithSnapshot; there are %d arguments", len(s.args))
		}
		from, end, err := openSnapshot(s.args[0], *stale)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		to, err := s.connect(ctx)
		if err != nil {
			return err
		}
		c := copier{session: s, from: from, to: to, progress: s.newProgress(*always)}
		err = c.run(ctx)
		if err != nil {
			err = fmt.Errorf("%w; %d entries had been copied: run it again, which leaves them alone", err, c.count.Copied)
		}
		return errors.Join(err, c.report())
	}
}

// openSnapshot opens a copy of the file: memstore would take the file for
// itself and write it anew, as whoever runs this command.
func openSnapshot(path string, stale bool) (_ *memstore.Store, end func() error, err error) {
	// memstore marks a file in use there, and takes the mark away when it has
	// written the file.
	mark, err := os.Stat(path + ".lock")
	if err == nil && mark.Size() > 0 && !stale {
		return nil, nil, fail(exitConflict, "%s is in use, or its program died without Close: what it has kept since is not in the file. Stop the program; -stale copies what there is", path)
	}
	dir, err := os.MkdirTemp("", "idempotent-") // for this user alone
	if err != nil {
		return nil, nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()
	file := filepath.Join(dir, filepath.Base(path))
	if err := copyFile(path, file); err != nil {
		return nil, nil, fmt.Errorf("the snapshot cannot be read: %w", err)
	}
	store, err := memstore.Open(memstore.WithSnapshot(file), memstore.WithLogger(silent),
		memstore.WithMaxEntries(math.MaxInt), memstore.WithMaxBytes(math.MaxInt64), memstore.WithSweepInterval(0))
	if err != nil {
		return nil, nil, fmt.Errorf("nothing was copied: %w", err)
	}
	return store, func() error { return errors.Join(store.Close(), remove()) }, nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// copier copies entries one by one.
type copier struct {
	*session
	from, to idempotent.Store
	progress *progress
	count    copied
}

func (c *copier) run(ctx context.Context) error {
	defer c.progress.end()
	return c.pages(ctx, c.from, "", func(page idempotent.Page) (bool, error) {
		for _, e := range page.Entries {
			if err := c.copy(ctx, e.Key); err != nil {
				return false, err
			}
			c.progress.tell("%d copied, %d left alone", c.count.Copied, c.count.Present)
		}
		return true, nil
	})
}

// copy copies one entry: a claim, which leaves alone what is there, and then its
// outcome. The owner stays the same, so that a copy that was interrupted between
// the two goes on.
func (c *copier) copy(ctx context.Context, key string) error {
	e, found, err := c.from.Load(ctx, key) // a page has no results
	if err != nil {
		return err
	}
	left := time.Until(e.Expires)
	if !found || left < idempotent.MinDuration {
		c.count.Expired++
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*c.timeout)
	defer cancel()
	_, claimed, err := c.to.Claim(ctx, key, idempotent.Claim{
		Owner: e.Owner, Fingerprint: e.Fingerprint, Trace: e.Trace, Lease: 2 * c.timeout, Keep: left,
	})
	switch {
	case errors.Is(err, idempotent.ErrCorrupt), errors.Is(err, idempotent.ErrNewerFormat), err == nil && !claimed:
		c.count.Present++
		return nil
	case err != nil:
		return err
	}
	err = c.to.Complete(ctx, key, e.Owner, idempotent.Outcome{
		Status: e.Status, Unknown: e.Unknown, Result: e.Result, Fingerprint: e.Fingerprint, Retention: left,
	})
	if err != nil {
		return err
	}
	c.count.Copied++
	if e.Unknown {
		c.count.Unknown++
	}
	return nil
}

func (c *copier) report() error {
	if c.json {
		return c.writeJSON(c.count)
	}
	fmt.Fprintf(c.out, "%d copied, of which %d are unknown outcomes to settle (list -state unknown)\n"+
		"%d left alone: the store had these keys\n%d past their retention\n",
		c.count.Copied, c.count.Unknown, c.count.Present, c.count.Expired)
	return nil
}
