// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
)

// EgressAnnotation is the annotation of a Namespace that lists, separated by commas, the source
// addresses of its pods' packets that leave the node.
const EgressAnnotation = plan.AnnotationPrefix + "egress"

// namespaces has EgressAnnotation of each Namespace that has it. It is the store of a Reflector.
type namespaces struct {
	changed func()

	mu     sync.Mutex
	wanted map[string]string
	absent map[string]bool // a list lacked it, and no event said that it was deleted
}

// Add stores a Namespace.
func (n *namespaces) Add(obj any) error { return n.Update(obj) }

// Update stores a changed Namespace.
func (n *namespaces) Update(obj any) error {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("a Namespace is a %T", obj)
	}
	n.put(o)
	return nil
}

func (n *namespaces) put(o *metav1.PartialObjectMetadata) {
	value := strings.TrimSpace(o.Annotations[EgressAnnotation])
	if len(value) > longAnnotation {
		value = value[:longAnnotation] + "…"
	}
	n.set(strings.Clone(o.Name), strings.Clone(value))
}

// set stores the annotation of a Namespace, or "" if it has none.
func (n *namespaces) set(name, value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.absent, name)
	if n.wanted[name] == value {
		return
	}
	if n.wanted[name] = value; value == "" {
		delete(n.wanted, name)
	}
	n.changed()
}

// Delete forgets a Namespace that was deleted.
func (n *namespaces) Delete(obj any) error {
	if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
		n.set(o.Name, "")
	}
	return nil
}

// Replace stores a list of all Namespaces. If the list lacks a Namespace whose pods run on the
// node, the Namespace stays, because the server may have been restored from an old backup.
func (n *namespaces) Replace(list []any, _ string) error {
	there := map[string]bool{}
	for _, obj := range list {
		if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
			there[o.Name] = true
			n.put(o)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.wanted {
		if !there[name] {
			n.absent[name] = true
		}
	}
	n.changed()
	return nil
}

// Resync does nothing, because the agent itself looks at all Namespaces regularly.
func (n *namespaces) Resync() error { return nil }

// now returns the annotations, and the Namespaces that the last list lacked.
func (n *namespaces) now() (wanted map[string]string, absent map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.wanted), maps.Clone(n.absent)
}

// source returns how a Reflector gets the Namespaces: only their metadata.
func (n *namespaces) source() source {
	return source{
		"namespaces", &metav1.PartialObjectMetadata{}, n,
		func(ctx context.Context, api API, o metav1.ListOptions) (runtime.Object, error) {
			return api.ListNamespaces(ctx, o)
		},
		func(ctx context.Context, api API, o metav1.ListOptions) (watch.Interface, error) {
			return api.WatchNamespaces(ctx, o)
		},
	}
}

var _ cache.ReflectorStore = (*namespaces)(nil)

// partial returns the value of the Accept header that requests only the metadata of a kind's
// objects.
func partial(kind string) string {
	as := ";as=" + kind + ";g=meta.k8s.io;v=v1"
	return runtime.ContentTypeProtobuf + as + "," + runtime.ContentTypeJSON + as
}

func (c *client) ListNamespaces(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list := new(metav1.PartialObjectMetadataList)
	return list, c.rest.Get().Resource("namespaces").SetHeader("Accept", partial("PartialObjectMetadataList")).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(list)
}

func (c *client) WatchNamespaces(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.rest.Get().Resource("namespaces").SetHeader("Accept", partial("PartialObjectMetadata")).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
}
