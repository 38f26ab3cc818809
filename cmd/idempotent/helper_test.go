package main

import (
	"bytes"
	"sync"
)

// lockedBuffer is a buffer that one goroutine reads and another writes.
type lockedBuffer struct {
	lock   sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.buffer.String()
}

func (b *lockedBuffer) Reset() {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.buffer.Reset()
}
