package peer

import (
	"context"
	"strings"

	"github.com/redis/rueidis"
)

// Rueidis is the fewest commands with the fastest client: one string a key,
// claimed by SET NX GET and completed by SET. Nobody owns a claim, so a late
// or repeated SET overwrites.
type Rueidis struct {
	client rueidis.Client
	op     func() string
}

// NewRueidis returns one over the server at addr.
func NewRueidis(op func() string, addr string) (*Rueidis, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		return nil, err
	}
	return &Rueidis{client: client, op: op}, nil
}

func openRueidis(op func() string, addr string) (Peer, error) { return NewRueidis(op, addr) }

// Do needs two round trips for a fresh key and one for a replay.
func (p *Rueidis) Do(ctx context.Context, key, request string) (string, error) {
	b := p.client.B()
	standing, err := p.client.Do(ctx, b.Set().Key(key).Value("running\n"+request).Nx().Get().Px(Retention).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		answer := p.op()
		return answer, p.client.Do(ctx, b.Set().Key(key).Value("done\n"+request+"\n"+answer).Px(Retention).Build()).Error()
	}
	if err != nil {
		return "", err
	}
	state, rest, _ := strings.Cut(standing, "\n")
	asked, answer, _ := strings.Cut(rest, "\n")
	switch {
	case asked != request:
		return "", ErrMismatch
	case state != "done":
		return "", ErrInFlight
	}
	return answer, nil
}

// Ping is one round trip.
func (p *Rueidis) Ping(ctx context.Context) error {
	return p.client.Do(ctx, p.client.B().Ping().Build()).Error()
}

// Close closes the client.
func (p *Rueidis) Close() error {
	p.client.Close()
	return nil
}
