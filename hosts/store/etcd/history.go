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

// A revision alone does not tell whether etcd lost its data, or is another etcd. Its history
// has then begun anew, and may already have passed our revision when we look. So each history
// of a cluster has a random name. List returns the name with the revision, and Watch compares
// it.

// history returns the name of the current history and its revision. If there is no history, it
// begins one if begin is set; otherwise the name is "".
func (s *Engine) history(ctx context.Context, c *clientv3.Client, begin bool) (name string, at int64, err error) {
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
		if got, err = c.Get(ctx, key); err != nil { // another host may have begun a history first
			return "", 0, err
		}
	}
	if len(got.Kvs) > 0 {
		name = string(got.Kvs[0].Value)
	}
	return name, got.Header.Revision, nil
}

// fork gives a new name to a history that went back, for example because a backup was restored.
// So hosts that look only after the history has passed their revision notice it too.
func (s *Engine) fork(ctx context.Context, c *clientv3.Client, history string) error {
	key := s.prefix + "history"
	same := clientv3.Compare(clientv3.Value(key), "=", history)
	_, err := c.Txn(ctx).If(same).Then(clientv3.OpPut(key, rand.Text())).Commit()
	return err
}

// oneStream makes a watch end when its connection ends. Otherwise the client would continue the
// watch on the next connection, even if that has another history.
func oneStream(ctx context.Context) context.Context {
	return context.WithValue(ctx, streamKey{}, new(atomic.Bool))
}

type streamKey struct{}

// refuseSecond refuses the second stream of such a watch, in the client.
func refuseSecond(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if begun, ok := ctx.Value(streamKey{}).(*atomic.Bool); ok && begun.Swap(true) {
		return nil, status.Error(codes.Aborted, "the connection of this watch broke")
	}
	return next(ctx, d, c, method, opts...)
}
