// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"
)

// apiServer is an API server that can return errors and wrong lists. It speaks protobuf, lists,
// watches from a revision, streams lists, and takes Events.
type apiServer struct {
	*testing.T
	url string

	mu     sync.Mutex
	change *sync.Cond
	closed bool
	rev    int
	oldest int // the first revision that can still be watched from
	log    []change
	nodes  map[string]*corev1.Node
	spaces map[string]*metav1.PartialObjectMetadata
	events []*corev1.Event
	lists  int
	token  string                      // requests must have it
	refuse int                         // an HTTP status for all requests
	forbid bool                        // refuses patches
	omit   func(name string) bool      // Nodes that lists lack
	before func(w http.ResponseWriter) // called before each answer
	kinds  jsonKinds
	pods   podPatches
	deaf   bool // watches of kinds tell nothing

	discovery map[string]string // answers about groups and versions, by path
	ending    string            // a namespace that is being deleted, and takes no Event
}

type change struct {
	rev    int
	kind   watch.EventType
	object object
}

// object is a Node or a Namespace.
type object interface {
	runtime.Object
	metav1.Object
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{T: t, nodes: map[string]*corev1.Node{}, spaces: map[string]*metav1.PartialObjectMetadata{}, rev: 1000}
	s.change = sync.NewCond(&s.mu)
	s.kinds = newJSONKinds(s)
	h := httptest.NewServer(s)
	s.url = h.URL
	t.Cleanup(func() { s.cut(true); h.CloseClientConnections(); h.Close() })
	return s
}

// config implements Options.Config.
func (s *apiServer) config() (*rest.Config, string, error) {
	return &rest.Config{Host: s.url}, "1", nil
}

// kubeNode returns a Node object as large as a real one.
func kubeNode(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprint("n", i), UID: "uid-1", CreationTimestamp: metav1.Unix(int64(1000+i), 0),
		Labels: map[string]string{"kubernetes.io/hostname": fmt.Sprint("n", i)},
	}}
	n.Spec.PodCIDRs = []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:0:%x::/64", i)}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	for _, a := range []string{fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("2001:db8::%x", i)} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.Name})
	for image := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("registry.example.org/team/image-%d@sha256:%064d", image, image), fmt.Sprintf("registry.example.org/team/image-%d:v1.%d", image, image)},
			SizeBytes: 1 << 20,
		})
	}
	return n
}

// set creates or changes a Node.
func (s *apiServer) set(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := watch.Modified
	if s.nodes[n.Name] == nil {
		kind = watch.Added
	}
	s.note(kind, n)
	s.nodes[n.Name] = n
}

// remove deletes a Node. If quietly is set, watches get no event, as after the API server is
// restored from a backup.
func (s *apiServer) remove(name string, quietly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !quietly {
		s.note(watch.Deleted, s.nodes[name])
	}
	delete(s.nodes, name)
}

func (s *apiServer) note(kind watch.EventType, o object) {
	s.rev++
	o.SetResourceVersion(strconv.Itoa(s.rev))
	s.log = append(s.log, change{s.rev, kind, o.DeepCopyObject().(object)})
	s.change.Broadcast()
}

// cut ends all watches. A client that then continues from its last revision gets the status 410.
func (s *apiServer) cut(forGood bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rev++
	s.closed, s.log, s.oldest = forGood, nil, s.rev
	for _, k := range s.kinds {
		k.log, k.oldest = nil, s.rev
	}
	s.change.Broadcast()
}

// say changes the server's answers.
func (s *apiServer) say(do func(*apiServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s)
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	status, before := s.refuse, s.before
	if s.token != "" && r.Header.Get("Authorization") != "Bearer "+s.token {
		status = http.StatusUnauthorized
	}
	s.mu.Unlock()
	if before != nil {
		before(w)
	}
	query := r.URL.Query()
	switch {
	case status != 0:
		w.WriteHeader(status)
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") && strings.HasSuffix(r.URL.Path, "/events"):
		s.takeEvent(w, r)
	case s.servePods(w, r), s.serveLAN(w, r):
	case r.Method == http.MethodPatch && s.forbid:
		w.WriteHeader(http.StatusForbidden)
	case r.Method == http.MethodPatch:
		s.patch(w, r)
	case r.URL.Path == "/api/v1/namespaces":
		s.serveSpaces(w, r)
	case s.discovery[r.URL.Path] != "":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, s.discovery[r.URL.Path]) //nolint:errcheck // the client sees it
	case s.kinds[r.URL.Path] != nil:
		s.kinds[r.URL.Path].serve(w, r)
	case r.URL.Path != "/api/v1/nodes":
		w.WriteHeader(http.StatusNotFound)
	case query.Get("watch") != "":
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		items := func() (list []object, rev int) {
			nodes, rev := s.visible()
			for i := range nodes {
				list = append(list, &nodes[i])
			}
			return list, rev
		}
		s.watch(w, r, from, query.Get("sendInitialEvents") == "true", s.encoder(), &corev1.Node{}, items)
	default:
		s.list(w)
	}
}

func protobuf() runtime.SerializerInfo {
	info, _ := runtime.SerializerInfoForMediaType(codecs().SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return info
}

func (s *apiServer) encoder() runtime.Encoder {
	return codecs().EncoderForVersion(protobuf().Serializer, corev1.SchemeGroupVersion)
}

func (s *apiServer) takeEvent(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Error(err)
	}
	o, _, err := codecs().UniversalDeserializer().Decode(body, nil, nil)
	e, ok := o.(*corev1.Event)
	if err != nil || !ok {
		s.Errorf("an Event is %T: %v", o, err)
		return
	}
	if r.URL.Path != "/api/v1/namespaces/"+e.Namespace+"/events" {
		s.Errorf("an Event in %s is sent to %s", e.Namespace, r.URL.Path)
	}
	if e.Namespace == s.ending {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	taken := false
	s.say(func(s *apiServer) {
		taken = slices.ContainsFunc(s.events, func(o *corev1.Event) bool { return o.Namespace == e.Namespace && o.Name == e.Name })
		if !taken {
			s.events = append(s.events, e)
		}
	})
	if taken {
		w.WriteHeader(http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	w.WriteHeader(http.StatusCreated)
	s.answer(w, e)
}

// answer sends a copy of an object: encoding sets the object's kind for a while, and several
// requests share what the server keeps.
func (s *apiServer) answer(w http.ResponseWriter, o runtime.Object) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	s.encoder().Encode(o.DeepCopyObject(), w) //nolint:errcheck // the client sees it
}

// patch changes annotations of a Node through its subresource status.
func (s *apiServer) patch(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/nodes/"), "/status")
	var change struct {
		Metadata struct{ Annotations map[string]string }
	}
	err := json.NewDecoder(r.Body).Decode(&change)
	if !ok || err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
		s.Errorf("patch of %s: %v", r.URL.Path, err)
	}
	s.mu.Lock()
	n := s.nodes[name].DeepCopy()
	s.mu.Unlock()
	if n == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	s.set(annotated(n, change.Metadata.Annotations))
	s.answer(w, n)
}

func annotated(n *corev1.Node, list map[string]string) *corev1.Node {
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	maps.Copy(n.Annotations, list)
	return n
}

// visible returns the Nodes that lists contain, in order.
func (s *apiServer) visible() (list []corev1.Node, rev int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	for name, n := range s.nodes {
		if s.omit == nil || !s.omit(name) {
			list = append(list, *n.DeepCopy())
		}
	}
	slices.SortFunc(list, func(a, b corev1.Node) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return list, s.rev
}

func (s *apiServer) list(w http.ResponseWriter) {
	items, rev := s.visible()
	s.answer(w, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(rev)}, Items: items})
}

// watch streams the changes of objects of the type of like. If initial is set, it first sends the
// existing objects.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, from int, initial bool, encoder runtime.Encoder, like object, items func() ([]object, int)) {
	s.mu.Lock()
	gone := !initial && from < s.oldest
	s.mu.Unlock()
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	stream := protobuf().StreamSerializer
	out := restwatch.NewEncoder(streaming.NewEncoder(stream.NewFrameWriter(w), codecs().EncoderForVersion(stream.Serializer, corev1.SchemeGroupVersion)), encoder)
	send := func(kind watch.EventType, o runtime.Object) bool {
		err := out.Encode(&watch.Event{Type: kind, Object: o.DeepCopyObject()}) // as in answer
		w.(http.Flusher).Flush()
		return err == nil
	}
	if gone {
		send(watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version"})
		return
	}
	if initial {
		list, rev := items()
		for _, o := range list {
			send(watch.Added, o)
		}
		mark := like.DeepCopyObject().(object)
		mark.SetResourceVersion(strconv.Itoa(rev))
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		send(watch.Bookmark, mark)
		from = rev
	}
	w.(http.Flusher).Flush()
	go func() { <-r.Context().Done(); s.change.Broadcast() }()
	for r.Context().Err() == nil {
		list, ok := s.next(r, from)
		if !ok {
			return
		}
		for _, c := range list {
			if reflect.TypeOf(c.object) == reflect.TypeOf(like) {
				send(c.kind, c.object)
			}
			from = c.rev
		}
	}
}

// next waits for changes after a revision. ok is false if the watch was cut.
func (s *apiServer) next(r *http.Request, after int) (list []change, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r.Context().Err() == nil && !s.closed && after >= s.oldest {
		first, _ := slices.BinarySearchFunc(s.log, after+1, func(c change, rev int) int { return c.rev - rev })
		if first < len(s.log) {
			return slices.Clone(s.log[first:]), true
		}
		s.change.Wait()
	}
	return nil, false
}

// httpRecorder returns a handler's answer.
func httpRecorder(h http.Handler, path string) string {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Body.String()
}
