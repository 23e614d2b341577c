// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// kindWatch keeps the copies of one kind of objects. A Reflector decides when to list and to watch. The
// objects of a list go past it, one after the other, because a Reflector would first collect all of
// them: 60 MB for 20,000 pods.
type kindWatch struct {
	copies
	path   string
	fields string // field selector
	labels string // label selector
	self   string // this Node
	api    *connection
	report func(error)

	// An API server may lack the kind. If optional is set, it then has no objects of it. Otherwise definition is the kind's
	// CustomResourceDefinition, or "" if the kind is built in, and unused reports whether no object is known.
	optional   bool
	definition string
	unused     func() bool
	pause      time.Duration // before the next look for a kind that the API server lacks
	defined    string        // the version of the definition that awaitKind has seen
}

// pageSize is the number of objects in a page of a list, if the API server makes pages.
const pageSize = 500

// limitEvery is after how many objects of a list the limit of memory is set again.
const limitEvery = 1000

// follow works until ctx ends.
func (w *kindWatch) follow(ctx context.Context) {
	lw := &cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch}
	reflectInto(ctx, w.String(), w.api.retry, &jsonObject{}, lw, kindStore{w})
}

// request opens a list or a watch.
func (w *kindWatch) request(ctx context.Context, o metav1.ListOptions) (io.ReadCloser, error) {
	api, err := w.api.get()
	if err != nil {
		return nil, err
	}
	o.FieldSelector, o.LabelSelector = w.fields, w.labels
	return api.Objects(ctx, w.path, o)
}

// list lists all objects into the copies, and returns an empty list with their version. If the API
// server lacks the kind, list waits until it has it.
func (w *kindWatch) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	for {
		list, err := w.listOnce(ctx, o)
		if w.lacking(err) && ctx.Err() == nil {
			w.report(w.missing(ctx))
			w.awaitKind(ctx)
			continue
		}
		if ctx.Err() == nil {
			w.report(err)
		}
		return list, err
	}
}

// lacking reports whether an error means that the API server does not have the kind.
func (w *kindWatch) lacking(err error) bool {
	return (w.optional || w.definition != "") && apierrors.IsNotFound(err)
}

func (w *kindWatch) listOnce(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	out := new(metav1.PartialObjectMetadataList)
	o.Limit = pageSize
	err := w.replace(ctx, func(yield func([]byte, error) bool) error {
		for {
			page, err := w.page(ctx, o, yield)
			if err != nil || page.Continue == "" {
				out.ResourceVersion = page.ResourceVersion
				return err
			}
			o.Continue, o.ResourceVersion, o.ResourceVersionMatch = page.Continue, "", ""
		}
	})
	return out, err
}

func (w *kindWatch) page(ctx context.Context, o metav1.ListOptions, yield func([]byte, error) bool) (m metav1.ListMeta, err error) {
	body, err := w.request(ctx, o)
	if err != nil {
		return m, err
	}
	defer body.Close() //nolint:errcheck // nothing was written
	return readList(body, func(object []byte) bool { return yield(object, nil) })
}

// replace gives all objects to the copies. read calls yield with each of them.
func (w *kindWatch) replace(ctx context.Context, read func(yield func([]byte, error) bool) error) error {
	var failed error
	count := 0
	err := w.Replace(func(yield func([]byte, error) bool) {
		failed = read(func(object []byte, err error) bool {
			if count++; count%limitEvery == 0 {
				limitMemory()
			}
			return yield(object, err)
		})
		if failed == nil {
			failed = hasNode(ctx, w.api, w.self)
		}
		if failed != nil && !errors.Is(failed, errEnough) {
			yield(nil, failed)
		}
	})
	if failed != nil && !errors.Is(failed, errEnough) {
		return failed // with its type
	}
	return err
}

// hasNode returns an error if the API server does not have this Node. Then it has lost objects, as a
// server with an empty database has, and its lists do not count.
func hasNode(ctx context.Context, c *connection, self string) error {
	api, err := c.get()
	if err != nil {
		return err
	}
	nodes, err := api.ListNodes(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + self, ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("look for this Node: %w", err)
	}
	for i := range nodes.Items {
		if nodes.Items[i].Name == self {
			return nil
		}
	}
	return fmt.Errorf("the API server does not have this Node, %s, so what it lists does not count: restart the kubelet to register it", self)
}

// watch opens a watch. If the watch begins with all objects, watch passes them to the copies. Then the
// first event that the caller gets is the bookmark after these objects.
func (w *kindWatch) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	events, err := w.open(ctx, o)
	if ctx.Err() == nil && !w.lacking(err) && !(o.SendInitialEvents != nil && refused(err)) {
		w.report(err)
	}
	if err != nil {
		return nil, err
	}
	return watch.NewStreamWatcher(events, events), nil
}

// refused reports whether a server does not send the objects in a watch. Then they are listed. With an etcd older than 3.4.25 or 3.5.8, which has no
// RequestWatchProgress, Kubernetes 1.36 calls it an internal error (Cacher.Watch in k8s.io/apiserver/pkg/storage/cacher).
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsInternalError(err)
}

func (w *kindWatch) open(ctx context.Context, o metav1.ListOptions) (*jsonEvents, error) {
	o.Watch = true
	body, err := w.request(ctx, o)
	if err != nil {
		return nil, err
	}
	events := newJSONEvents(body, func(error) {}) // watch reports the errors of initial
	if o.SendInitialEvents != nil {
		late := time.AfterFunc(listTime, events.Close)
		defer late.Stop()
		if err := w.initial(ctx, events); err != nil {
			events.Close()
			return nil, err
		}
	}
	events.lost = func(err error) {
		if ctx.Err() == nil {
			w.report(err)
		}
	}
	return events, nil
}

// initial reads the objects with which a watch begins. Events of changes may be among them.
func (w *kindWatch) initial(ctx context.Context, events *jsonEvents) error {
	deleted := map[cache.ObjectName]bool{}
	err := w.replace(ctx, func(yield func([]byte, error) bool) error {
		for {
			kind, object, err := events.Decode()
			if err != nil {
				return fmt.Errorf("read the objects: %w", err)
			}
			o, ok := object.(*jsonObject)
			if !ok {
				return apierrors.FromObject(object)
			}
			if kind == watch.Bookmark {
				if o.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
					events.next = &watch.Event{Type: kind, Object: o}
					return nil
				}
				continue
			}
			if name := cache.MetaObjectToName(o); kind == watch.Deleted {
				deleted[name] = true
				continue
			} else if len(deleted) > 0 {
				delete(deleted, name)
			}
			if !yield(o.text, nil) {
				return errEnough
			}
		}
	})
	for name := range deleted {
		if err == nil {
			w.Delete(name.Namespace, name.Name)
		}
	}
	return err
}

// kindStore is the store of a kindWatch's Reflector.
type kindStore struct{ *kindWatch }

// Add stores an object of an event.
func (s kindStore) Add(obj any) error { return s.Update(obj) }

// Update stores a changed object.
func (s kindStore) Update(obj any) error {
	o, ok := obj.(*jsonObject)
	if !ok {
		return fmt.Errorf("one of the %s is a %T", s, obj)
	}
	return s.Set(o.text)
}

// Delete removes a deleted object.
func (s kindStore) Delete(obj any) error {
	if o, ok := obj.(*jsonObject); ok {
		s.copies.Delete(o.Namespace, o.Name)
	}
	return nil
}

// Replace does nothing, because list and watch have given the objects to the copies.
func (kindStore) Replace([]any, string) error { return nil }

// Resync does nothing: the copies have the objects.
func (kindStore) Resync() error { return nil }

var _ cache.ReflectorStore = kindStore{}
