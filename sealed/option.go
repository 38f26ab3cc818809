package sealed

// Option sets one thing of a store.
type Option func(*store)

// WithoutCompression encrypts results as they are; those that were compressed
// before are still opened. Use it where an answer holds a secret next to text
// that others choose: the length of a compressed answer then tells about the
// secret. The default is to compress where that makes a result shorter.
func WithoutCompression() Option { return func(s *store) { s.zstd.encoder = nil } }

// WithPlain answers with results that are not sealed, too, as they were
// recorded before this package came into use. Take it out one retention later:
// with it, who can write to the store can make up answers. The default is to
// refuse them as [idempotent.ErrCorrupt].
func WithPlain() Option { return func(s *store) { s.plain = true } }
