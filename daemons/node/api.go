// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// API is the API server.
type API interface {
	ListNodes(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error)
	WatchNodes(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	ListNamespaces(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	WatchNamespaces(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	Objects(ctx context.Context, path string, o metav1.ListOptions) (io.ReadCloser, error)
	CreateEvent(ctx context.Context, e *corev1.Event) error
	PatchNode(ctx context.Context, name string, mergePatch []byte) error
	Request(ctx context.Context, verb, path, contentType string, body []byte) ([]byte, error)
}

// client calls the API server over HTTP. It knows only the types that the agent uses, because all
// types of client-go would cost 12 MB of memory.
type client struct{ rest rest.Interface }

// codecs returns the codecs of the types that the agent uses.
func codecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.NodeList{}, &corev1.Event{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}

// NewAPI returns the API server of a configuration.
func NewAPI(c *rest.Config) (API, error) {
	c = rest.CopyConfig(c)
	gv := corev1.SchemeGroupVersion
	c.GroupVersion, c.APIPath, c.NegotiatedSerializer = &gv, "/api", codecs().WithoutConversion()
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c.UserAgent = "patchbayd-node"
	c.QPS, c.Burst = 20, 40 // at the start and for pages of a list; the library's default is 5 and 10
	r, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("use the API server %s: %w", c.Host, err)
	}
	return &client{r}, nil
}

func (c *client) ListNodes(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	list := new(corev1.NodeList)
	return list, c.rest.Get().Resource("nodes").VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(list)
}

func (c *client) WatchNodes(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.rest.Get().Resource("nodes").VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
}

func (c *client) CreateEvent(ctx context.Context, e *corev1.Event) error {
	return c.rest.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
}

// PatchNode patches the subresource status, which accepts annotations too. So the agent needs no
// right to change podCIDRs or taints.
func (c *client) PatchNode(ctx context.Context, name string, mergePatch []byte) error {
	return c.rest.Patch(types.MergePatchType).Resource("nodes").Name(name).SubResource("status").Body(mergePatch).Do(ctx).Error()
}

// Request sends JSON, and returns the answer's. contentType is that of the body, if there is one. An error has the reason that the
// server gives.
func (c *client) Request(ctx context.Context, verb, path, contentType string, body []byte) ([]byte, error) {
	r := c.rest.Verb(verb).AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON)
	if body != nil {
		r = r.SetHeader("Content-Type", contentType).Body(body)
	}
	result := r.Do(ctx)
	answer, err := result.Raw()
	if err != nil {
		err = result.Error()
	}
	return answer, err
}

// source is a kind of objects of the API server, and the store that mirrors them.
type source struct {
	name   string
	object runtime.Object
	store  cache.ReflectorStore
	list   func(ctx context.Context, api API, o metav1.ListOptions) (runtime.Object, error)
	watch  func(ctx context.Context, api API, o metav1.ListOptions) (watch.Interface, error)
}

// source returns how a Reflector gets the Nodes.
func (m *mirror) source() source {
	return source{
		"nodes", &corev1.Node{}, m,
		func(ctx context.Context, api API, o metav1.ListOptions) (runtime.Object, error) {
			return api.ListNodes(ctx, o)
		},
		func(ctx context.Context, api API, o metav1.ListOptions) (watch.Interface, error) {
			return api.WatchNodes(ctx, o)
		},
	}
}

// follow keeps the store equal to the API server's objects until ctx ends. report gets the result
// of each request.
func (s source) follow(ctx context.Context, c *connection, report func(error)) {
	do := func(call func(API) error) error {
		api, err := c.get()
		if err == nil {
			err = call(api)
		}
		if ctx.Err() == nil {
			report(err)
		}
		return err
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			ctx, cancel := context.WithTimeout(ctx, listTime)
			defer cancel()
			return list, do(func(api API) error { list, err = s.list(ctx, api, o); return err })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
			return w, do(func(api API) error { w, err = s.watch(ctx, api, o); return err })
		},
	}
	reflectInto(ctx, s.name, c.retry, s.object, lw, s.store)
}

// reflectInto runs a Reflector until ctx ends. Its first pause after a failure is retry; the next ones
// grow.
func reflectInto(ctx context.Context, name string, retry time.Duration, object runtime.Object, lw cache.ListerWatcher, store cache.ReflectorStore) {
	const steps = 5 // from the first pause to the longest
	cache.NewReflectorWithOptions(lw, object, store, cache.ReflectorOptions{
		Name:    name,
		Backoff: &wait.Backoff{Duration: retry, Cap: resident.RetryMost, Steps: steps, Factor: 2, Jitter: 1},
	}).RunWithContext(ctx)
}

// listTime limits the list of all objects. It is long, because a slow server may have to send
// thousands.
const listTime = 2 * time.Minute

// trim returns the fields of a Node that the agent uses.
func trim(o *corev1.Node) plan.Node {
	n := plan.Node{
		Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.Unix(), Leaving: o.DeletionTimestamp != nil,
		Pods: strip(o.Spec.PodCIDRs),
	}
	if len(n.Pods) == 0 && o.Spec.PodCIDR != "" {
		n.Pods = []string{strings.Clone(o.Spec.PodCIDR)}
	}
	n.Name, n.UID = strings.Clone(n.Name), strings.Clone(n.UID)
	for _, a := range o.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			n.Addrs = append(n.Addrs, strings.Clone(a.Address))
		}
	}
	for key, value := range o.Annotations {
		if strings.HasPrefix(key, plan.AnnotationPrefix) {
			if len(value) > longAnnotation {
				value = fmt.Sprintf("(%d bytes)", len(value)) // no value of ours, so it is reported
			}
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[strings.Clone(key)] = strings.Clone(value)
		}
	}
	return n
}

// longAnnotation is longer, in bytes, than any value of ours.
const longAnnotation = 1024

// strip copies texts, so that the large object that contains them can be freed.
func strip(texts []string) (out []string) {
	for _, t := range texts {
		out = append(out, strings.Clone(t))
	}
	return out
}
