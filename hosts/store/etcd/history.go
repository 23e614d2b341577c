// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/rand"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A revision does not identify an etcd that lost its data, or another one: its history
// begins anew, and may have passed our revision at the next look. So each history of a
// cluster has a random name, which List returns with the revision and Watch checks.

// history returns the name of the current history and its revision. If there is none, and
// begin is set, it begins one with a new name; without begin the name is "".
func (s *Store) history(ctx context.Context, c *clientv3.Client, begin bool) (name string, at int64, err error) {
	key := s.prefix + "history"
	got, err := c.Get(ctx, key)
	if err != nil {
		return "", 0, err
	}
	if len(got.Kvs) == 0 && begin {
		absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
		if _, err := c.Txn(ctx).If(absent).Then(clientv3.OpPut(key, rand.Text())).Commit(); err != nil {
			return "", 0, err
		}
		if got, err = c.Get(ctx, key); err != nil { // another host may have begun one first
			return "", 0, err
		}
	}
	if len(got.Kvs) > 0 {
		name = string(got.Kvs[0].Value)
	}
	return name, got.Header.Revision, nil
}

// fork gives a history that went back, as after a restore from a backup, a new name: hosts
// that look only when it has passed their revision notice that, too.
func (s *Store) fork(ctx context.Context, c *clientv3.Client, history string) error {
	key := s.prefix + "history"
	same := clientv3.Compare(clientv3.Value(key), "=", history)
	_, err := c.Txn(ctx).If(same).Then(clientv3.OpPut(key, rand.Text())).Commit()
	return err
}

// oneStream ends a watch with its connection. The client itself would continue on the next
// one, in whatever history it finds there.
func oneStream(ctx context.Context) context.Context {
	return context.WithValue(ctx, streamKey{}, new(atomic.Bool))
}

type streamKey struct{}

// refuseSecond is the client's part of oneStream.
func refuseSecond(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if begun, ok := ctx.Value(streamKey{}).(*atomic.Bool); ok && begun.Swap(true) {
		return nil, status.Error(codes.Aborted, "the connection of this watch broke")
	}
	return next(ctx, d, c, method, opts...)
}
