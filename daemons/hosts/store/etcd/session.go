// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/clock"
)

// session is a lease of etcd that this process renews. It keeps its stream open as long as the
// stream answers, because each new stream is a login, which costs etcd 0.1 s. If an answer
// comes too late, the stream is dropped, and the next attempt uses another member.
type session struct {
	s    *Engine
	id   clientv3.LeaseID
	lost chan struct{}
	over func() // ends the renewal

	ctx    context.Context //nolint:containedctx // the context of the stream
	hangUp context.CancelFunc
	stream pb.Lease_LeaseKeepAliveClient // nil if no stream is open
}

// Session implements store.Store. If ttl is shorter than etcd's minimum, which is 1.5 times its
// election timeout, etcd uses the minimum.
func (s *Engine) Session(ctx context.Context, ttl time.Duration) (store.Session, error) {
	var granted *clientv3.LeaseGrantResponse
	err := s.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		granted, err = c.Grant(ctx, int64(max((ttl+time.Second-1)/time.Second, 1)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin lease: %w", err)
	}
	l := &session{s: s, id: granted.ID, lost: make(chan struct{})}
	ctx, done := s.life.until(ctx)
	l.over = sync.OnceFunc(func() { done(); close(l.lost) })
	s.life.work.Go(func() {
		defer l.over()
		defer l.drop()
		l.keep(ctx, time.Duration(granted.TTL)*time.Second)
	})
	return l, nil
}

// Lost implements store.Session.
func (l *session) Lost() <-chan struct{} { return l.lost }

// keep renews the lease until ctx ends or the lease is over. No other error stops it. An engine
// that was unreachable for longer than ttl may still have the lease, because etcd gives every
// lease its full ttl when it starts. If hosts gave up, all would write their objects again just
// when etcd is back. One attempt gets a third of the ttl, so that an attempt that hangs leaves
// time for another.
func (l *session) keep(ctx context.Context, ttl time.Duration) {
	for wait := ttl / 4; ; {
		clock.Sleep(ctx, wait+rand.N(wait/2)) // so that hosts do not renew at the same time
		if ctx.Err() != nil {
			return
		}
		attempt, cancel := context.WithTimeout(ctx, ttl/3)
		err := l.renew(attempt)
		cancel()
		switch {
		case err == nil:
			wait = ttl / 4
		case errors.Is(err, store.ErrSessionOver):
			return
		default:
			wait = ttl / 10
		}
	}
}

func (l *session) renew(ctx context.Context) error {
	return l.s.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		if l.hangUp == nil {
			l.ctx, l.hangUp = context.WithCancel(l.s.life.ctx)
		}
		inTime := context.AfterFunc(ctx, l.hangUp)
		remaining, err := l.exchange(c)
		if !inTime() || err != nil {
			l.drop()
		}
		if err == nil && remaining <= 0 {
			err = store.ErrSessionOver
		}
		return errors.Join(err, ctx.Err())
	})
}

// exchange sends one request, and returns how many seconds remain.
func (l *session) exchange(c *clientv3.Client) (remaining int64, err error) {
	if l.stream == nil {
		l.stream, err = pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(clientv3.WithRequireLeader(l.ctx), grpc.WaitForReady(true))
		if err != nil {
			return 0, rpctypes.Error(err)
		}
	}
	if err := l.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil {
		return 0, rpctypes.Error(err)
	}
	answer, err := l.stream.Recv()
	return answer.GetTTL(), rpctypes.Error(err)
}

// drop ends the stream.
func (l *session) drop() {
	if l.hangUp != nil {
		l.hangUp()
	}
	l.hangUp, l.stream = nil, nil
}

// End implements store.Session.
func (l *session) End(ctx context.Context) error {
	err := l.s.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, l.id)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrSessionOver) {
		return fmt.Errorf("end lease: %w", err)
	}
	l.over()
	return nil
}

func (s *Engine) leaseID(l store.Session) (clientv3.LeaseID, error) {
	ours, ok := l.(*session)
	if !ok || ours.s != s {
		return 0, errors.New("the lease belongs to another store")
	}
	select {
	case <-ours.Lost():
		return 0, store.ErrSessionOver
	default:
		return ours.id, nil
	}
}
