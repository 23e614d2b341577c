// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/rand"
	"strings"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
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

// inHistory is a revision with the history that it is of.
func inHistory(revision int64, history string) store.Revision {
	return typed.Revision(revision) + "@" + store.Revision(history)
}

// ofHistory takes them apart. The revision of a single object says no history.
func ofHistory(r store.Revision) (revision int64, history string, err error) {
	number, history, _ := strings.Cut(string(r), "@")
	revision, err = typed.Number(store.Revision(number))
	return revision, history, err
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
