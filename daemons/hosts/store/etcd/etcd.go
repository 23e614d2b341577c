// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcd keeps a store in etcd v3. That is an etcd that runs for other purposes too, or
// one that the agent of a host starts and may serve to other hosts. Each cluster of hosts has
// its own prefix, and needs no rights to other keys:
//
//	/patchbay/v1/CLUSTER/networks/x
//
// Compare-and-swap is a transaction on the revision of a key. A lease is a lease of etcd. Open
// sends no request, so a host can boot while etcd is down, and each call reports what is wrong.
package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// Options holds etcd's addresses and our credentials.
type Options struct {
	Endpoints      []string // host:port of at least one member, or unix:///PATH
	Cluster        string   // the cluster that owns the prefix; package store must accept the name
	TLS            TLS
	User, Password string
	PasswordFile   string        // the file that contains Password; read again when etcd refuses the login
	Timeout        time.Duration // for one call, unless its ctx ends earlier; 0 means 5 s
}

// Engine keeps the tables in an etcd.
type Engine struct {
	store.Tables
	opts   Options
	prefix string
	life   *life

	turn   chan struct{}    // held by the goroutine that reads or replaces client
	client *clientv3.Client // nil until the login has succeeded
	made   secrets          // the secrets with which client was created

	closed []func() // functions that Close calls last, in reverse order
}

const defaultTimeout = 5 * time.Second

// connect checks the options and reads the files that they name. It does not wait for etcd.
func connect(o Options) (*Engine, error) {
	if len(o.Endpoints) == 0 || o.Cluster == "" || strings.ContainsAny(o.Cluster, "/\x00") {
		return nil, fmt.Errorf("open etcd: %q at %q: it needs the name of a cluster, and host:port of etcd", o.Cluster, o.Endpoints)
	}
	if (o.User == "") != (o.Password == "") {
		return nil, errors.New("open etcd: user and password go together")
	}
	if _, err := o.secrets(); err != nil {
		return nil, fmt.Errorf("open etcd: %w", err)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	quietOnce()
	s := &Engine{opts: o, prefix: "/patchbay/v1/" + o.Cluster + "/", life: newLife(), turn: make(chan struct{}, 1)}
	s.Rows = func(table string) store.Rows { return rows{s, s.prefix + table + "/"} }
	return s, nil
}

// quietOnce stops grpc from writing to stderr, because our errors contain what it would log.
// Nothing else in patchbayd uses grpc. It also limits the server's log to two files of 4 MB
// each, instead of 64 MB.
func quietOnce() {
	quiet.Do(func() {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
		wal.SegmentSizeBytes = 4 << 20
	})
}

var quiet sync.Once

// dial returns the client. If there is a password, the client must log in first, and etcd may
// be down, so ctx needs a deadline.
func (s *Engine) dial(ctx context.Context) (*clientv3.Client, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.client != nil || ctx.Err() != nil {
		return s.client, ctx.Err()
	}
	made, err := s.opts.secrets()
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	scheme := "http://"
	if made.tls != nil {
		scheme = "https://"
	}
	var endpoints []string
	for _, e := range s.opts.Endpoints {
		if s.local() {
			scheme = ""
		}
		endpoints = append(endpoints, scheme+e)
	}
	s.made = made
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: made.tls, Username: s.opts.User, Password: made.password,
		Context: s.life.ctx, DialTimeout: time.Until(deadline), Logger: zap.NewNop(),
		// A member that hangs, or that cannot be reached, does not answer a ping. Servers allow
		// one ping in 5 s; grpc sends at most one in 10 s.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(noteReason), grpc.WithChainStreamInterceptor(refuseSecond), grpc.WithConnectParams(reconnect())},
	})
	return s.client, err
}

// reconnect makes the client try often enough that hosts are connected soon after etcd is up
// again.
func reconnect() grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
		MinConnectTimeout: 3 * time.Second,
	}
}

// call runs f with the client, and limits it to the time of one call.
func (s *Engine) call(ctx context.Context, f func(context.Context, *clientv3.Client) error) error {
	ctx, done := s.life.until(ctx)
	defer done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	short, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	short, why := withReason(short)
	client, err := s.dial(short)
	if err == nil {
		err = f(short, client)
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w (%s)", context.Cause(ctx), why.orElse(err))
	}
	if err = s.explain(err, why); !answered(err) {
		s.renew(why.tokenIsStale())
	}
	return err
}

// Close implements store.Store.
func (s *Engine) Close() error {
	s.life.end()
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	var err error
	if s.client != nil {
		err = s.client.Close()
	}
	for _, end := range slices.Backward(s.closed) {
		end()
	}
	s.client, s.closed = nil, nil
	if errors.Is(err, context.Canceled) {
		return nil // its contexts were cancelled above
	}
	return err
}

// local reports whether this is the store of this host itself.
func (s *Engine) local() bool { return strings.HasPrefix(s.opts.Endpoints[0], "unix:") }

var _ store.Store = (*Engine)(nil)

// life is the time during which a store is open. It starts the store's goroutines, and end
// waits for them.
type life struct {
	work sync.WaitGroup
	ctx  context.Context //nolint:containedctx // this type exists to hold it; it is cancelled with the cause store.ErrClosed
	stop context.CancelCauseFunc
}

func newLife() *life {
	l := new(life)
	l.ctx, l.stop = context.WithCancelCause(context.Background())
	return l
}

// end ends the life, and waits for its goroutines.
func (l *life) end() {
	l.stop(store.ErrClosed)
	l.work.Wait()
}

// until returns a context that also ends when the store is closed, with the same cause. Call
// the returned function to release the context.
func (l *life) until(ctx context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(ctx)
	if l.ctx.Err() != nil {
		cancel(context.Cause(l.ctx)) // at once, before the AfterFunc below runs
	}
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return both, func() { stop(); cancel(nil) }
}

// ended returns the error of a Watch, whose ctx comes from the function until. If the caller has
// ended ctx, it returns nil.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if errors.Is(context.Cause(ctx), store.ErrClosed) {
		return store.ErrClosed
	}
	return nil
}

// A revision alone does not show whether etcd lost its data, or is another etcd. Its history has
// then begun anew, and may already have passed our revision when we look. So each history of a
// cluster has a random name. List returns the name with the revision, and Watch compares it.

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

// Fork implements store.Store.
func (s *Engine) Fork(ctx context.Context, at store.Revision) error {
	_, history, err := at.Split()
	if err != nil {
		return err
	}
	return s.call(ctx, func(ctx context.Context, c *clientv3.Client) error { return s.fork(ctx, c, history) })
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
