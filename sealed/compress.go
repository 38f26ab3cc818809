package sealed

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// maxResult is how long a result may be to be compressed, and how much one may
// grow when it is opened: what a hostile one can make the process allocate.
const maxResult = 64 << 20

// The encodings of a sealed result.
const (
	encodingPlain = 0
	encodingZstd  = 1
)

// compressor packs results. Encoder and decoder are shared by all calls, of
// which as many work at a time as there are processors. They have no goroutine
// and need no Close.
type compressor struct {
	encoder *zstd.Encoder // nil: results are packed as they are
	decoder *zstd.Decoder
	longest int // a result that is packed, and one that is unpacked
}

func newCompressor(longest int) compressor {
	encoder, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderCRC(false), // GCM authenticates
		zstd.WithSingleSegment(true))
	if err != nil {
		panic("sealed: zstd: " + err.Error())
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(longest)))
	if err != nil {
		panic("sealed: zstd: " + err.Error())
	}
	return compressor{encoder, decoder, longest}
}

// pack returns the shorter of result as it is and compressed, and its encoding.
func (c compressor) pack(result string) (encoding byte, body []byte) {
	body = []byte(result)
	if c.encoder == nil || len(body) > c.longest {
		return encodingPlain, body
	}
	if packed := c.encoder.EncodeAll(body, make([]byte, 0, len(body))); len(packed) < len(body) {
		return encodingZstd, packed
	}
	return encodingPlain, body
}

// unpack is the inverse of pack.
func (c compressor) unpack(encoding byte, body []byte) (string, error) {
	switch encoding {
	case encodingPlain:
		return string(body), nil
	case encodingZstd:
		result, err := c.decoder.DecodeAll(body, nil)
		return string(result), err
	}
	return "", fmt.Errorf("encoding %d", encoding)
}
