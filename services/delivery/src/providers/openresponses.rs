//! The driver for providers that follow the OpenResponses specification.
//! Such a provider keeps no record that could be asked for, so a lost call stays unknown.

use super::call::{ProviderAnswer, ProviderCall};
use super::failure::ProviderError;
use super::settings::ProviderSettings;
use super::transport::{DriverError, Transport, call_headers};
use super::{refusal, request};

#[derive(Debug)]
pub struct OpenResponses {
    transport: Transport,
    model: String,
    stream: bool,
}

impl OpenResponses {
    pub(super) fn new(settings: &ProviderSettings) -> Result<Self, DriverError> {
        Ok(Self {
            transport: Transport::new(settings, refusal::classify)?,
            model: settings.model.clone(),
            stream: settings.stream,
        })
    }

    pub(super) async fn call(
        &self,
        call: &ProviderCall,
        on_text: impl FnMut(&str) + Send,
    ) -> Result<ProviderAnswer, ProviderError> {
        let headers = call_headers(&call.session_key, &call.delivery_id(), call.traceparent.as_deref())?;
        let body = request::body(call, &self.model, self.stream, &call.session_key);
        self.transport.call(body, headers, on_text).await
    }
}
