// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/clock"
)

// These limits detect a watch that stalls. The watch begins again when its connection breaks or
// stays silent.
const (
	beginTimeout = 20 * time.Second // how long etcd may take to confirm the watch
	heartbeat    = 5 * time.Second  // how often we ask for the progress of the watch
	maxSilent    = 3                // how many heartbeats may stay without an answer
)

// watch implements Watch over one stream after another.
type watch struct {
	rows
	at    int64  // the last revision of which all events were delivered
	of    string // the name of its history; "" until it is known
	yield func(store.Change, error) bool
}

// errBroken means that the stream ended. It has no details, because the next stream begins with
// a call whose error has them.
var errBroken = errors.New("the stream of a watch ended")

// errEnough means that the caller left its loop.
var errEnough = errors.New("the loop ended")

func (t rows) Watch(ctx context.Context, after store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		ctx, done := t.life.until(ctx)
		defer done()
		at, history, err := after.Split()
		w := &watch{rows: t, at: at, of: history, yield: yield}
		for wait := 100 * time.Millisecond; err == nil && ctx.Err() == nil; wait = min(2*wait, 3*time.Second) {
			if err = w.stream(ctx, &wait); !refused(err) && !errors.Is(err, errEnough) {
				err = nil
				clock.Sleep(ctx, wait/2+rand.N(wait)) // so that hosts do not retry at the same time
			}
		}
		if ctx.Err() != nil {
			err = ended(ctx, ctx.Err())
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(store.Change{}, err)
		}
	}
}

// stream watches until an error occurs. Each answer resets the wait before the next stream.
func (w *watch) stream(ctx context.Context, wait *time.Duration) error {
	c, err := w.check(ctx)
	if err != nil {
		return err
	}
	// Watches with equal metadata would share a stream, and stall together.
	ctx = metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "patchbay-watch", strconv.FormatInt(time.Now().UnixNano(), 36))
	ctx, cancel := context.WithCancel(oneStream(ctx))
	defer cancel()
	late := time.AfterFunc(beginTimeout, cancel)
	changes := c.Watch(ctx, w.prefix, clientv3.WithPrefix(), clientv3.WithRev(w.at+1), clientv3.WithCreatedNotify())
	late.Stop()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for silent := 0; silent <= maxSilent; {
		select {
		case response, ok := <-changes:
			if !ok {
				return errBroken
			}
			if err := w.deliver(ctx, response); err != nil {
				return err
			}
			silent, *wait = 0, 100*time.Millisecond
		case <-beat.C:
			silent++
			progress(ctx, c)
		}
	}
	return errBroken
}

// progress asks etcd for a sign of life. If there is no stream, it waits for the client.
func progress(ctx context.Context, c *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = c.RequestProgress(ctx) // if this fails, no answer comes, and that is noticed
}

// check asks etcd about our login, the history and the revision. An etcd that was restored from
// a backup has the same history, but may be behind the revision.
func (w *watch) check(ctx context.Context) (client *clientv3.Client, err error) {
	err = w.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		client = c
		history, at, err := w.history(ctx, c, w.of == "")
		if err != nil {
			return err
		}
		if at < w.at && history == w.of && w.of != "" {
			if err := w.fork(ctx, c, history); err != nil {
				return err
			}
		}
		if w.of != "" && history != w.of || at < w.at {
			return store.ErrCompacted
		}
		w.of = history
		return nil
	})
	return client, err
}

// deliver passes the events of a response to the caller.
func (w *watch) deliver(ctx context.Context, response clientv3.WatchResponse) error {
	switch {
	case response.CompactRevision != 0:
		return store.ErrCompacted
	case response.Err() != nil:
		return errBroken
	case len(response.Events) == 0:
		if response.Header.Revision < w.at { // a backup was restored, or only this member is behind
			_, err := w.check(ctx)
			return err
		}
		return nil
	}
	for i, e := range response.Events {
		last := i+1 == len(response.Events) || response.Events[i+1].Kv.ModRevision != e.Kv.ModRevision
		if !w.yield(change(e, w.prefix, last), nil) {
			return errEnough
		}
		if last {
			w.at = e.Kv.ModRevision
		}
	}
	return nil
}

// change converts an event. When a lease ends, etcd deletes many objects at one revision. Only
// the last of these events has a revision from which a watch can continue; the others have the
// revision before.
func change(e *clientv3.Event, prefix string, last bool) store.Change {
	c := store.Change{Deleted: e.Type == mvccpb.DELETE}
	at := e.Kv.ModRevision
	if c.Deleted && !last {
		at--
	}
	c.Row = store.Row{Key: strings.TrimPrefix(string(e.Kv.Key), prefix), Data: e.Kv.Value, Revision: store.At(at)}
	return c
}
