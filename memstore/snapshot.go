package memstore

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/idempotent-go/idempotent"
)

// A snapshot is one file:
//
//	8 bytes    "idemsnap"
//	1 byte     the format, 1
//	varints    when it was written, and when the first of its claims was made,
//	           both in nanoseconds since 1970; the largest fence; the number of
//	           entries
//	entries    the claims first, then the finished ones in the order of their
//	           completion
//	32 bytes   SHA-256 of all that
//
// and an entry is
//
//	1 byte     flags
//	varints    nanoseconds from the snapshot's first claim to: the key's first
//	           claim, this owner's claim, the completion or the lapse, and the end
//	           of retention or Keep; the fence
//	varints    the lengths of key, owner, fingerprint, trace and result
//	bytes      these texts
const (
	snapshotMagic  = "idemsnap"
	snapshotFormat = 1
	snapshotStart  = len(snapshotMagic) + 1
)

const (
	flagDone byte = 1 << iota
	flagSuccess
	flagUnknown
	flagTakeOver
	flagReported

	flagsKnown = flagReported<<1 - 1
)

// errClosing is the answer to a step that was under way when the store was
// closed: the snapshot may or may not have it.
var errClosing = errors.New("memstore: closed during the call: whether it counts after a restart is not known")

// kept is the last word on a step that has changed something: nil, unless the
// store keeps a snapshot and has been closed meanwhile. What was changed before
// Close is in the snapshot.
func (s *Store) kept() error {
	if s.snapshot != nil && s.closed.Load() {
		return errClosing
	}
	return nil
}

// snapshot is the file of a store, held by this process alone until it is
// closed.
type snapshot struct {
	path string
	lock *os.File
}

// openSnapshot takes the file for this process. It reports whether the process
// before has ended without writing it.
func openSnapshot(path string) (sn *snapshot, crashed bool, err error) {
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	sn = &snapshot{path: path, lock: lock}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	if err := lockFile(lock); err != nil {
		return nil, false, fmt.Errorf("another store uses it: %w", err)
	}
	info, err := lock.Stat()
	if err != nil {
		return nil, false, err
	}
	return sn, info.Size() > 0, nil
}

// linksMost is how many links are followed to a file: more of them are a circle.
const linksMost = 40

// fileOf returns the file that path leads to, now and not at Close: a directory
// may be changed in between, and a link would be replaced itself, and the file
// behind it left as it was. That need not exist.
func fileOf(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range linksMost {
		target, err := os.Readlink(path)
		if err != nil {
			return path, nil // it is no link
		}
		if !filepath.IsAbs(target) {
			target = filepath.Dir(path) + string(filepath.Separator) + target
		}
		path = target
	}
	return "", errors.New("it is a circle of links")
}

// begin marks the file as in use. What is marked and not locked was in use when
// its process died.
func (sn *snapshot) begin() error {
	_, err := sn.lock.WriteAt([]byte("in use\n"), 0)
	return err
}

// end gives the file back; clean says that it has all there was.
func (sn *snapshot) end(clean bool) error {
	var err error
	if clean {
		err = sn.lock.Truncate(0)
	}
	return errors.Join(err, unlockFile(sn.lock))
}

// restore fills a new store from its snapshot. Where that fails nothing of it
// is in the store.
func (s *Store) restore(path string, background bool) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("memstore: snapshot %s: %w", path, err)
		}
	}()
	file, err := fileOf(path)
	if err != nil {
		return err
	}
	sn, crashed, err := openSnapshot(file)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unlockFile(sn.lock)
		}
	}()
	entries, err := s.read(file, background)
	if err != nil {
		return err
	}
	for _, sl := range entries {
		if _, twice := s.slots.LoadOrStore(sl.key(), sl); twice {
			s.slots.Clear()
			return damaged("it has a key twice")
		}
	}
	if err := sn.begin(); err != nil {
		s.slots.Clear()
		return err
	}
	if crashed {
		s.logger.Warn("memstore: the process before this one ended without Close: what it had kept since its snapshot is forgotten",
			slog.String("snapshot", path))
	}
	for _, sl := range entries {
		s.bytes.Add(sl.textBytes())
		if w := sl.load(); w.phase() == pending {
			s.tally.add(1, 0)
			s.gone.lower(w.end() + sl.keep)
		} else {
			s.tally.add(0, 1)
			s.bytes.Add(int64(len(sl.result)))
			s.queue.push(sl, w.end())
		}
	}
	s.snapshot = sn
	return nil
}

// read returns the entries of the snapshot at path and sets the clock and the
// fence by it. A file that does not exist has none.
func (s *Store) read(path string, background bool) ([]*slot, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		s.clock = newClock(background)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	r, err := newReader(f, info.Size())
	if err != nil {
		return nil, err
	}
	entries, err := r.entries(s.maxAge)
	if err != nil {
		return nil, err
	}
	s.clock = newClockAt(background, r.first, r.written)
	s.fence.Store(r.fence)
	return entries, nil
}

// reader reads a snapshot. Nothing it returns may be used before entries has
// returned, which checks the sum.
type reader struct {
	file io.Reader // all of it
	body *bufio.Reader
	buf  []byte    // of the last text
	sum  hash.Hash // of what body has read
	left int64     // bytes of the body that have not been asked for

	written, first int64 // nanoseconds since 1970
	fence          int64
	count          int64
	err            error
}

func damaged(what string) error { return fmt.Errorf("%w: %s", idempotent.ErrCorrupt, what) }

// newReader reads what comes before the entries of a file of size bytes.
func newReader(file io.Reader, size int64) (*reader, error) {
	r := &reader{file: file, sum: sha256.New(), left: size - sha256.Size}
	if r.left < int64(snapshotStart) {
		return nil, damaged("it is too short")
	}
	r.body = bufio.NewReaderSize(io.TeeReader(io.LimitReader(file, r.left), r.sum), 1<<16)
	start := r.text(int64(snapshotStart))
	switch {
	case r.err != nil:
		return nil, r.err
	case start[:len(snapshotMagic)] != snapshotMagic:
		return nil, damaged("it is no snapshot of a memstore")
	case start[len(snapshotMagic)] > snapshotFormat:
		return nil, fmt.Errorf("%w: it has format %d, and this release reads up to %d", idempotent.ErrNewerFormat, start[len(snapshotMagic)], snapshotFormat)
	case start[len(snapshotMagic)] != snapshotFormat:
		return nil, damaged("it has no format")
	}
	r.written, r.first, r.fence, r.count = r.number(), r.number(), r.number(), r.number()
	if r.err == nil && (r.first > r.written || r.written-r.first > forever) {
		r.err = damaged("its times are impossible")
	}
	return r, r.err
}

// entries reads all entries and the sum.
func (r *reader) entries(maxAge int64) ([]*slot, error) {
	var all []*slot
	for range r.count {
		sl := r.entry(maxAge)
		if r.err != nil {
			break
		}
		all = append(all, sl)
	}
	if r.err == nil && r.left != 0 {
		r.err = damaged("it goes on after its last entry")
	}
	if r.err != nil {
		return nil, r.err
	}
	var want [sha256.Size]byte
	if _, err := io.ReadFull(r.file, want[:]); err != nil {
		return nil, err
	}
	if !bytes.Equal(r.sum.Sum(nil), want[:]) {
		return nil, damaged("its checksum is wrong")
	}
	return all, nil
}

func (r *reader) entry(maxAge int64) *slot {
	flags := r.byte()
	first, claimed, at, end := r.number(), r.number(), r.number(), r.number()
	fence := r.number()
	key, owner, fingerprint, trace, result := r.length(), r.length(), r.length(), r.length(), r.length()
	sl := &slot{
		texts:   r.text(key + owner + fingerprint + trace),
		cuts:    [3]int{int(key), int(key + owner), int(key + owner + fingerprint)},
		claimed: claimed, first: first, fence: fence,
		takeOver: flags&flagTakeOver != 0,
	}
	sl.result = r.text(result)
	if r.err != nil {
		return nil
	}
	written := r.written - r.first
	if flags&^flagsKnown != 0 || key == 0 || owner == 0 ||
		first > claimed || claimed > at || at > written || at > end || end > 2*forever {
		r.err = damaged("it has an impossible entry")
		return nil
	}
	if flags&flagDone == 0 {
		sl.keep = min(end-at, forever)
		sl.reported.Store(flags&flagReported != 0)
		sl.store(newWord(pending, at))
		return sl
	}
	sl.completed = at
	sl.success, sl.unknown = flags&flagSuccess != 0, flags&flagUnknown != 0
	sl.store(newWord(done, min(end, forever, at+min(maxAge, forever))))
	return sl
}

func (r *reader) byte() (b byte) {
	if r.err != nil {
		return 0
	}
	if r.left == 0 {
		r.err = damaged("it ends within an entry")
		return 0
	}
	r.left--
	b, r.err = r.body.ReadByte()
	return b
}

// number returns what [binary.AppendUvarint] has written, where it is no more
// than an int64 holds.
func (r *reader) number() int64 {
	var n uint64
	for shift := 0; shift < 63; shift += 7 {
		b := r.byte()
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return int64(n)
		}
	}
	if r.err == nil {
		r.err = damaged("it has an impossible number")
	}
	return 0
}

// length returns the number of bytes of a text, which cannot be more than what
// is left.
func (r *reader) length() int64 {
	n := r.number()
	if n > r.left && r.err == nil {
		r.err = damaged("it ends within an entry")
	}
	if r.err != nil {
		return 0
	}
	return n
}

// text returns the next n bytes.
func (r *reader) text(n int64) string {
	if n > r.left && r.err == nil {
		r.err = damaged("it ends within an entry")
	}
	if r.err != nil {
		return ""
	}
	r.left -= n
	r.buf = slices.Grow(r.buf[:0], int(n))[:n]
	_, r.err = io.ReadFull(r.body, r.buf)
	return string(r.buf)
}

// save writes the snapshot of a closed store whose background has ended.
func (s *Store) save() (err error) {
	sn := s.snapshot
	defer func() {
		err = errors.Join(err, sn.end(err == nil))
		if err != nil {
			err = fmt.Errorf("memstore: snapshot %s: %w", sn.path, err)
		}
	}()
	entries := s.settled()
	temp := sn.path + ".tmp"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = s.write(f, entries)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, sn.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncDir(filepath.Dir(sn.path))
}

// settled returns what a closed store holds, claims first, then what is
// finished by its completion. Steps that are under way may still change the
// store; all of them will be told that they may not count.
func (s *Store) settled() []found {
	var all []found
	now := s.clock.now()
	s.slots.Range(func(k, _ any) bool {
		for {
			v, ok := s.slots.Load(k)
			if !ok {
				return true
			}
			f := found{slot: v.(*slot), now: now}
			f.word = f.slot.load()
			switch f.word.phase() {
			case busy:
				runtime.Gosched()
			case dead:
				s.slots.CompareAndDelete(k, f.slot)
			default:
				if !f.slot.past(f.word, now) {
					all = append(all, f)
				}
				return true
			}
		}
	})
	slices.SortFunc(all, func(x, y found) int {
		if x.word.phase() == done && y.word.phase() == done {
			return cmp.Compare(x.slot.completed, y.slot.completed)
		}
		return cmp.Compare(x.word.phase(), y.word.phase())
	})
	return all
}

// write writes entries to w.
func (s *Store) write(w io.Writer, entries []found) error {
	now := s.clock.now()
	first := now
	for _, f := range entries {
		first = min(first, f.slot.first)
	}
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)
	b := append([]byte(snapshotMagic), snapshotFormat)
	for _, n := range [...]int64{s.clock.time(now).UnixNano(), s.clock.time(first).UnixNano(), s.fence.Load(), int64(len(entries))} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, f := range entries {
		sl := f.slot
		var at int64
		end := f.word.end()
		var flags byte
		set := func(flag byte, is bool) {
			if is {
				flags |= flag
			}
		}
		set(flagTakeOver, sl.takeOver)
		result := ""
		if f.word.phase() == done {
			flags |= flagDone
			set(flagSuccess, sl.success)
			set(flagUnknown, sl.unknown)
			result, at = sl.result, sl.completed
			end = max(end, at)
		} else {
			at = min(end, now) // its process ends: the lease lapses now
			end = at + sl.keep
			set(flagReported, sl.reported.Load())
		}
		b = append(b, flags)
		for _, n := range [...]int64{sl.first, sl.claimed, at, end} {
			b = binary.AppendUvarint(b, uint64(n-first))
		}
		b = binary.AppendUvarint(b, uint64(sl.fence))
		for _, text := range [...]string{sl.key(), sl.owner(), sl.fingerprint(), sl.trace(), result} {
			b = binary.AppendUvarint(b, uint64(len(text)))
		}
		b = append(b, sl.texts...)
		if _, err := out.Write(b); err != nil {
			return err
		}
		if _, err := out.WriteString(result); err != nil {
			return err
		}
		b = b[:0]
	}
	if _, err := out.Write(b); err != nil { // of a store without entries
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}
