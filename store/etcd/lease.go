// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
)

// lease is one of etcd's that this process keeps.
type lease struct {
	*typed.Kept
	s  *Store
	id clientv3.LeaseID
}

// Lease is store.Store's. The ttl becomes longer when etcd has a minimum: 1.5 times
// its election timeout.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	var granted *clientv3.LeaseGrantResponse
	err := s.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		granted, err = c.Grant(ctx, int64(max((ttl+time.Second-1)/time.Second, 1)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin lease: %w", err)
	}
	l := &lease{s: s, id: granted.ID}
	l.Kept = s.life.Keep(ctx, time.Duration(granted.TTL)*time.Second, l.renew)
	return l, nil
}

func (l *lease) renew(ctx context.Context) error {
	return l.s.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.KeepAliveOnce(ctx, l.id)
		return err
	})
}

// End is store.Lease's.
func (l *lease) End(ctx context.Context) error {
	err := l.s.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, l.id)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrLeaseOver) {
		return fmt.Errorf("end lease: %w", err)
	}
	l.Over()
	return nil
}

func (s *Store) leaseID(l store.Lease) (clientv3.LeaseID, error) {
	ours, ok := l.(*lease)
	if !ok || ours.s != s {
		return 0, errors.New("the lease is of another store")
	}
	select {
	case <-ours.Lost():
		return 0, store.ErrLeaseOver
	default:
		return ours.id, nil
	}
}
