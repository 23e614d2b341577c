// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Objects of network policies are read as JSON: an unknown field of a policy must be seen, and types
// for all of them would cost memory.

// Objects requests objects as JSON: their list, or the events of a watch if o.Watch is set.
func (c *client) Objects(ctx context.Context, path string, o metav1.ListOptions) (io.ReadCloser, error) {
	return c.rest.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).VersionedParams(&o, metav1.ParameterCodec).Stream(ctx)
}

// object is an object as the API serves it, with that part of its metadata that a Reflector needs.
type jsonObject struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	text json.RawMessage
}

// DeepCopyObject implements runtime.Object. Nothing changes an object, so the object itself serves as the copy.
func (o *jsonObject) DeepCopyObject() runtime.Object { return o }

// named has the parts of metadata that are read.
type named struct {
	Metadata struct {
		Namespace, Name, ResourceVersion string
		Annotations                      map[string]string
	}
}

func readObject(text json.RawMessage) (*jsonObject, error) {
	var n named
	if err := json.Unmarshal(text, &n); err != nil {
		return nil, fmt.Errorf("read an object's name: %w", err)
	}
	o := &jsonObject{text: text}
	o.Namespace, o.Name, o.ResourceVersion, o.Annotations = n.Metadata.Namespace, n.Metadata.Name, n.Metadata.ResourceVersion, n.Metadata.Annotations
	return o, nil
}

// readList reads one page of a list. It calls each with one object after the other, whose memory it
// uses again, so that no list is in memory as a whole.
func readList(body io.Reader, each func(object []byte) bool) (m metav1.ListMeta, err error) {
	d := json.NewDecoder(body)
	err = readFields(d, func(key string) error {
		switch key {
		case "metadata":
			return d.Decode(&m)
		case "items":
			return readItems(d, each)
		}
		return d.Decode(new(json.RawMessage))
	})
	if err == nil && m.ResourceVersion == "" {
		err = errors.New("the answer is no list")
	}
	if err != nil && !errors.Is(err, errEnough) {
		return m, fmt.Errorf("read a list: %w", err)
	}
	return m, err
}

// errEnough means that the caller wants no more objects.
var errEnough = errors.New("no more objects are wanted")

// readFields reads a JSON object. field reads the value of a key.
func readFields(d *json.Decoder, field func(key string) error) error {
	if err := delimiter(d, '{'); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err == nil {
			err = field(fmt.Sprint(key))
		}
		if err != nil {
			return err
		}
	}
	return delimiter(d, '}')
}

func delimiter(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%v stands where %v should", got, want)
	}
	return err
}

func readItems(d *json.Decoder, each func([]byte) bool) error {
	first, err := d.Token()
	if err != nil || first == nil { // null
		return err
	}
	var object json.RawMessage
	for d.More() {
		if err := d.Decode(&object); err != nil {
			return err
		}
		if !each(object) {
			return errEnough
		}
	}
	return delimiter(d, ']')
}

// jsonEvents decodes the events of a watch. It implements watch.Decoder.
type jsonEvents struct {
	body io.ReadCloser
	json *json.Decoder
	next *watch.Event // read before
	lost func(error)  // gets the error that the server sent
}

func newJSONEvents(body io.ReadCloser, lost func(error)) *jsonEvents {
	return &jsonEvents{body: body, json: json.NewDecoder(body), lost: lost}
}

// Decode returns the next event. If the object has no name, the event means that the objects must be
// listed again, because it is not known which of them has changed.
func (e *jsonEvents) Decode() (watch.EventType, runtime.Object, error) {
	if next := e.next; next != nil {
		e.next = nil
		return next.Type, next.Object, nil
	}
	var event struct {
		Type   watch.EventType
		Object json.RawMessage
	}
	if err := e.json.Decode(&event); err != nil {
		return "", nil, err
	}
	if event.Type == watch.Error {
		status := new(metav1.Status)
		if err := json.Unmarshal(event.Object, status); err != nil {
			return "", nil, err
		}
		return e.error(status)
	}
	o, err := readObject(event.Object)
	if err == nil && o.Name == "" && event.Type != watch.Bookmark {
		err = errors.New("it has no name")
	}
	if err != nil {
		status := apierrors.NewResourceExpired(fmt.Sprintf("an object of an event cannot be read, so all are listed again: %v", err)).ErrStatus
		return e.error(&status)
	}
	return event.Type, o, nil
}

// error returns the event of an error. It does not report that the version of a watch is too old: a list
// follows, whose result is reported.
func (e *jsonEvents) error(status *metav1.Status) (watch.EventType, runtime.Object, error) {
	if err := apierrors.FromObject(status); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		e.lost(err)
	}
	return watch.Error, status, nil
}

// Close implements watch.Decoder.
func (e *jsonEvents) Close() { e.body.Close() } //nolint:errcheck // nothing was written

// AsObject implements watch.Reporter.
func (e *jsonEvents) AsObject(err error) runtime.Object {
	e.lost(err)
	return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
}
