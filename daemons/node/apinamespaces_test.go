// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// space creates or changes a Namespace. If egress is "", the Namespace has no annotation of ours.
func (s *apiServer) space(name, egress string) {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"example.org/other": "x"}}}
	if egress != "" {
		o.Annotations[EgressAnnotation] = egress
	}
	s.putSpace(o)
}

// labelled creates or changes a Namespace with labels.
func (s *apiServer) labelled(name string, labels map[string]string) {
	s.putSpace(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

func (s *apiServer) putSpace(o *metav1.PartialObjectMetadata) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := o.Name
	kind := watch.Modified
	if s.spaces[name] == nil {
		kind = watch.Added
	}
	s.note(kind, o)
	s.spaces[name] = o
}

// dropSpace deletes a Namespace. If quietly is set, watches get no event.
func (s *apiServer) dropSpace(name string, quietly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !quietly {
		s.note(watch.Deleted, s.spaces[name])
	}
	delete(s.spaces, name)
}

// serveSpaces lists and watches the metadata of Namespaces.
func (s *apiServer) serveSpaces(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		s.Errorf("a request of whole Namespaces: %s", r.Header.Get("Accept"))
	}
	items := func() (list []object, rev int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, o := range s.spaces {
			list = append(list, o.DeepCopy())
		}
		return list, s.rev
	}
	encoder := codecs().EncoderForVersion(protobuf().Serializer, metav1.SchemeGroupVersion)
	if query := r.URL.Query(); query.Get("watch") != "" {
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		s.watch(w, r, from, query.Get("sendInitialEvents") == "true", encoder, &metav1.PartialObjectMetadata{}, items)
		return
	}
	list, rev := items()
	out := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(rev)}}
	for _, o := range list {
		out.Items = append(out.Items, *o.(*metav1.PartialObjectMetadata))
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	encoder.Encode(out, w) //nolint:errcheck // the client sees it
}
