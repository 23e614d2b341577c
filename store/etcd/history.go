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

// A revision says nothing of an etcd that lost its data, or is another one: its
// history begins anew, and may have passed ours when we look at it again. So each
// history of a cluster has a name that is drawn by chance, which List returns with
// the revision, and Watch wants to find again.

// history is the name of the one that is there, and how far it is. When there is
// none it is begun with a new name, if begin says so, and else is "".
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
		if got, err = c.Get(ctx, key); err != nil { // somebody else may have been faster
			return "", 0, err
		}
	}
	if len(got.Kvs) > 0 {
		name = string(got.Kvs[0].Value)
	}
	return name, got.Header.Revision, nil
}

// fork gives another name to a history that went back, as when a backup was
// restored: who looks later, when it has passed the revision he knows, finds that too.
func (s *Store) fork(ctx context.Context, c *clientv3.Client, history string) error {
	key := s.prefix + "history"
	same := clientv3.Compare(clientv3.Value(key), "=", history)
	_, err := c.Txn(ctx).If(same).Then(clientv3.OpPut(key, rand.Text())).Commit()
	return err
}

// oneStream has a watch end with its connection. The client would go on by itself
// on the next one, in whatever history is there.
func oneStream(ctx context.Context) context.Context {
	return context.WithValue(ctx, streamKey{}, new(atomic.Bool))
}

type streamKey struct{}

// refuseSecond is oneStream's part in the client.
func refuseSecond(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if begun, ok := ctx.Value(streamKey{}).(*atomic.Bool); ok && begun.Swap(true) {
		return nil, status.Error(codes.Aborted, "the connection of this watch broke")
	}
	return next(ctx, d, c, method, opts...)
}
